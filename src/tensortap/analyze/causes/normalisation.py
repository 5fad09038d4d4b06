"""Normalisations without anything to normalise by."""

from __future__ import annotations

import math

from tensortap.analyze.case import Case
from tensortap.analyze.causes.overflow import overflow
from tensortap.analyze.causes.words import count
from tensortap.analyze.findings import Cause
from tensortap.analyze.health import number_text

__all__ = ["norm_layer", "weight_norm"]


def norm_layer(case: Case) -> Cause | None:
    """Layers that divide by a deviation."""
    given = case.health(0)
    if given is None or not case.out.is_bad:
        return None
    if "variance" in case.operation.inputs:
        variance = case.part("variance")
        if variance is not None and variance.negative:
            return Cause(
                "negative-variance", f"The running variance is negative, down to {number_text(variance.min)}."
            )
    if given.magnitude > math.sqrt(case.largest) / 10:
        return overflow(case, "the sum of squares in a normalisation", of=[given])
    scale = case.output(case.operation.outputs.get("scale", 2))
    if scale is not None and scale.pos_inf:
        return Cause(
            "zero-variance",
            f"Division by a variance of zero: of {int(scale.elements)} groups of numbers that {case.word} normalises, "
            f"{int(scale.pos_inf)} hold one and the same number, and eps adds nothing.",
            advice="Raise eps; 1e-5 is usual.",
        )
    return None


def weight_norm(case: Case) -> Cause | None:
    """Weights that are divided by their own norm."""
    direction = case.health(0)
    if direction is None or not direction.zero or not case.out.nan:
        return None
    return Cause(
        "norm-of-zero",
        f"Division by a norm of zero: {count(direction.zero, direction.elements, 'zero')} in {case.arguments[0]}, "
        "which is divided by its own norm.",
        advice="Begin with weights that are not zero, or put the normalisation on after they were set.",
    )
