"""One run in a line: how many tensors are bad, the loss, and the size of gradients and parameters."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tensortap.analyze.facts import RunFacts
from tensortap.analyze.health import Health

__all__ = ["Overview", "overview_of"]


class Overview(NamedTuple):
    """A run in a few numbers; None for what its records do not tell.

    Attributes:
        tensors: number of tensors whose health is known.
        nan: tensors that hold NaN.
        inf: tensors that hold infinities and no NaN.
        loss: value of what the backward pass started from.
        gradients: Euclidean norm of all gradients together.
        parameters: Euclidean norm of all parameters that have a gradient.
        largest: the largest finite absolute value of all.
        unread: number of tensors that could not be looked at.
    """

    run: int
    step: int
    rank: int
    timestamp: int
    tensors: int
    nan: int
    inf: int
    loss: float | None
    gradients: float | None
    parameters: float | None
    largest: float
    largest_tensor: str
    unread: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict()


def overview_of(facts: RunFacts) -> Overview:
    """The overview of one run."""
    nan = inf = tensors = 0
    largest, where = 0.0, ""
    gradients: list[Health] = []
    parameters: list[Health] = []
    for tensor, health in facts:
        if not health.was_read:
            continue
        tensors += 1
        nan += bool(health.nan)
        inf += bool(health.infinities and not health.nan)
        if health.magnitude > largest and _is_number(health):
            largest, where = health.magnitude, tensor
    for tensor, parameter in facts.gradient_tensors.items():
        gradient = facts.health(tensor) or facts.health_carried(tensor)
        weight = facts.health(facts.reads.get(parameter, f"{parameter}:0"))
        if gradient is not None and gradient.was_read:
            gradients.append(gradient)
            if weight is not None and weight.was_read:
                parameters.append(weight)
    info = facts.info
    norms = _norm(gradients), _norm(parameters)
    place = (info.index, info.global_step, info.task, info.timestamp)
    return Overview(*place, tensors, nan, inf, _loss(facts), *norms, largest, where, len(facts.unread))


def _is_number(health: Health) -> bool:
    return "int" not in health.dtype and health.dtype != "bool"


def _norm(healths: list[Health]) -> float | None:
    """Euclidean norm of several tensors: a pill has count, mean and variance of the finite elements."""
    if not healths:
        return None
    if any(health.is_bad for health in healths):
        return math.nan
    return math.sqrt(sum(h.finite * (h.variance + h.mean**2) for h in healths if h.finite))


def _loss(facts: RunFacts) -> float | None:
    """The value of the tensor that the backward pass started from."""
    for tensor in facts.losses:
        health = facts.health(tensor)
        if health is not None and health.elements == 1:
            if health.finite:
                return health.min
            return math.nan if health.nan else math.inf if health.pos_inf else -math.inf
    return None
