"""Updates in one operation: a variable, its gradient, the learning rate, and what the optimizer remembers."""

from __future__ import annotations

from tensortap.analyze.case import Case
from tensortap.analyze.causes.overflow import overflow
from tensortap.analyze.causes.words import count
from tensortap.analyze.findings import Cause
from tensortap.analyze.health import number_text

__all__ = ["UPDATES", "update"]

UPDATES = (
    "adadelta adagrad adagrad_da adagrad_v2 adamax centered_rmsprop ftrl fused_adam momentum proximal_sgd rmsprop sgd "
    "sign_update"
)

_SMALL_EPSILON = 1e-7
_FARTHEST_STEP = 1e3
"""Good optimizers change no variable by more than this times the learning rate, unless the gradient is larger."""


def update(case: Case) -> Cause | None:
    """A division by a mean of squares that is zero, or a step that is too large."""
    if not case.out.is_bad:
        return None
    squares = case.part("squares") if "squares" in case.operation.inputs else None
    epsilon = _number(case, "epsilon")
    if (
        squares is not None
        and squares.zero
        and epsilon is not None
        and epsilon <= _SMALL_EPSILON
        and case.out.nan
    ):
        return Cause(
            "epsilon-too-small",
            f"The optimizer divides by zero: {count(squares.zero, squares.elements, 'zero')} in "
            f"{case.name_of('squares')}, the mean of the squared gradients, and epsilon is {number_text(epsilon)}.",
            advice=f"Raise {case.api('epsilon')} (1e-4 for float16), or keep the optimizer's state in float32.",
        )
    rate = _number(case, "rate")
    gradient = case.part("gradient") if "gradient" in case.operation.inputs else None
    if rate is None or gradient is None or gradient.is_bad:
        return None
    step = abs(rate) * max(gradient.magnitude, _FARTHEST_STEP if squares is not None else 0.0)
    if step >= case.largest / 2 or rate != rate:
        return Cause(
            "infinite-learning-rate",
            f"The learning rate is far too large: it is {number_text(rate)}, and the gradient reaches "
            f"{number_text(gradient.magnitude)}.",
            advice="Look at the schedule: a division by zero, or a negative number to a power.",
        )
    if gradient.magnitude**2 >= case.largest:
        return overflow(case, "the square of a gradient", of=[gradient])
    return None


def _number(case: Case, part: str) -> float | None:
    """The number that plays a part, given as an argument or as a tensor of one element."""
    if part in case.operation.inputs:
        health = case.part(part)
        if health is None or health.elements != 1:
            return None
        if not health.finite:
            return float("nan") if health.nan else float("inf")
        return health.max
    return case.number(part)
