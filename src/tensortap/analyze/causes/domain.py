"""Functions outside of where they are defined."""

from __future__ import annotations

import math

from tensortap.analyze.case import Case
from tensortap.analyze.causes.gradient import gradient_at_zero
from tensortap.analyze.causes.overflow import overflow
from tensortap.analyze.causes.words import count
from tensortap.analyze.findings import Cause
from tensortap.analyze.health import number_text

__all__ = ["gamma", "logarithm", "out_of_range", "power", "root"]


def logarithm(case: Case) -> Cause | None:
    """Logarithms of what is not positive."""
    given = case.part("log_of")
    if given is None:
        return None
    shift = {"log1p": -1.0}.get(case.op, 0.0)
    if case.out.nan and given.finite and given.min < shift:
        return Cause(
            "log-of-negative",
            f"{case.word} of a negative number: its input goes down to {number_text(given.min)}"
            + (f", and {count(given.negative, given.elements, 'negative')}." if not shift else "."),
            advice="Clamp the input to a small positive number, or find out why it is negative.",
        )
    if case.out.neg_inf and (given.zero if not shift else given.min == shift):
        what = "zero" if not shift else "−1"
        return Cause(
            "log-of-zero",
            f"{case.word} of {what}: "
            + (
                count(given.zero, given.elements, "zero") + " in its input."
                if not shift
                else "its input reaches −1."
            ),
            advice="Add a small epsilon, clamp, or compute in log space (log_softmax, logsigmoid, logsumexp).",
        )
    return None


def root(case: Case) -> Cause | None:
    """Roots of what is negative, and one over the root of zero."""
    given = case.health(0)
    if given is None:
        return None
    if case.out.nan and given.negative:
        return Cause(
            f"{case.op}-of-negative",
            f"{case.word} of a negative number: {count(given.negative, given.elements, 'negative')} in its input, "
            f"down to {number_text(given.min)}.",
            advice="Clamp the input at 0; a variance computed as E[x²]−E[x]² can come out slightly negative.",
        )
    if case.op == "rsqrt" and given.zero:
        return Cause(
            "division-by-zero",
            f"rsqrt of zero is infinite: {count(given.zero, given.elements, 'zero')} in its input.",
            advice="Add a small epsilon inside the root.",
        )
    return None


def power(case: Case) -> Cause | None:
    """Powers that are not defined, not finite, or too large."""
    constant = case.number("base")
    if constant is not None:  # a number to the power of a tensor
        power = case.health(0)
        if power is None or not case.out.infinities:
            return None
        return Cause(
            "overflow",
            f"Overflow: {number_text(constant)} to the power of {number_text(power.max)} exceeds the largest "
            f"{case.dtype}, {number_text(case.largest)}.",
        )
    base = case.part("base")
    exponent = case.number("exponent")
    power = case.part("exponent")
    if base is None:
        return None
    shown = number_text(exponent) if exponent is not None else "a tensor" if power is None else power.spread
    fractional = exponent is None or not float(exponent).is_integer()
    if case.out.nan and base.negative and fractional:
        return Cause(
            "power-of-negative",
            f"A negative number to a power that is no integer ({shown}): "
            f"{count(base.negative, base.elements, 'negative')} in the base, down to {number_text(base.min)}.",
            advice="Take the absolute value or clamp the base first.",
        )
    lowest = exponent if exponent is not None else -1.0 if power is not None and power.negative else 0.0
    if case.out.infinities and base.zero and lowest < 0:
        if case.forward_op in ("pow", "sqrt", "norm"):
            return gradient_at_zero(case)
        return Cause(
            "division-by-zero",
            f"Zero to a negative power ({shown}): {count(base.zero, base.elements, 'zero')} in the base.",
        )
    if case.out.infinities:
        return overflow(case, f"a power of {shown}", of=[base])
    return None


def out_of_range(case: Case) -> Cause | None:
    """Functions that are defined in an interval only."""
    given = case.health(0)
    if given is None or not case.out.is_bad:
        return None
    low, high = {"acosh": (1.0, math.inf), "logit": (0.0, 1.0)}.get(case.op, (-1.0, 1.0))
    if given.min < low or given.max > high:
        edge = number_text(given.max if given.max > high else given.min)
        return Cause(
            f"{case.op}-out-of-range",
            f"{case.word} is only defined from {number_text(low)} to {number_text(high)}, and its input reaches "
            f"{edge}, outside of that.",
            advice="Clamp the input; a cosine computed in floating point can exceed 1 by a rounding error.",
        )
    if case.op in ("atanh", "erfinv", "logit") and (given.min == low or given.max == high):
        kind, edges = ("the-edge", "0 and 1") if case.op == "logit" else ("one", "±1")
        return Cause(
            f"{case.op}-at-{kind}", f"{case.word} is infinite at {edges}, and its input reaches that."
        )
    return None


def gamma(case: Case) -> Cause | None:
    """The gamma function and its relatives at their poles."""
    given = case.health(0)
    if given is None or given.is_bad or not given.zero + given.negative:
        return None
    which = [
        count(number, given.elements, what)
        for number, what in ((given.zero, "zero"), (given.negative, "negative"))
        if number
    ]
    return Cause(
        f"{case.op}-at-a-pole",
        f"{case.word} is infinite or not defined at zero and at the negative whole numbers: {' and '.join(which)} in "
        "its input.",
        advice="Keep the input positive: add a small number to counts and concentrations.",
    )
