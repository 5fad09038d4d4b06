"""Infinities that were there already, and met or were taken in."""

from __future__ import annotations

from tensortap.analyze.case import Case
from tensortap.analyze.causes.words import count
from tensortap.analyze.findings import Cause

__all__ = ["masked_elements", "with_infinity"]

_SMOOTHING = frozenset(["sum", "neg", "masked_fill", "mul", "div"])
"""What a loss does with log probabilities on the way to the mean of all classes."""

_TO_A_MAXIMUM = frozenset(["max", "maximum", "detach", "expand", "to_copy"])


def with_infinity(case: Case) -> Cause | None:
    """NaN of infinities that were in the inputs: 0·inf and inf−inf."""
    masked = [each for each in case.inputs if each.health is not None and each.health.infinities]
    if not masked or not case.out.nan:
        return None
    name = masked[0].tensor
    if case.op in ("mul", "mm", "addmm", "convolution", "addcmul"):
        return Cause(
            "zero-times-infinity",
            f"0·inf is NaN: {name} holds infinities, and it is multiplied by zeros.",
            advice="Replace masked elements with masked_fill or where instead of multiplying by a mask.",
        )
    if case.op == "sub" and len(masked) > 1 and case.comes_of(case.arguments[1], "amax", _TO_A_MAXIMUM):
        return Cause(
            "fully-masked-row",
            f"A softmax or logsumexp over nothing: where all of {name} is −inf, so is its maximum, and −inf−(−inf) is "
            "NaN.",
            advice="Leave at least one element of every row unmasked, or use a large negative number such as "
            f"{case.api('lowest')} instead of −inf.",
        )
    if case.op in ("sub", "add", "rsub", "sum", "mean", "cumsum"):
        return Cause(
            "infinity-minus-infinity",
            f"inf−inf is NaN: {' and '.join(each.tensor for each in masked[:2])} hold infinities that meet.",
        )
    return None


def masked_elements(case: Case) -> Cause | None:
    """Results that take in infinities which were put there on purpose."""
    for each in case.inputs:
        if each.status == "intended" and each.health is not None and case.out.infinities:
            counted = count(each.health.infinities, each.health.elements, "infinite")
            if case.op in ("sum", "mean") and case.comes_of(each.tensor, "log_softmax", _SMOOTHING):
                return Cause(
                    "smoothed-masked-class",
                    f"Label smoothing takes every class into the loss, also those masked with −inf: {counted} in "
                    f"{each.tensor}.",
                    advice="Mask with a large negative number instead of −inf, or smooth over the other classes only.",
                )
            return Cause(
                "masked-elements-used",
                f"The {case.word} takes in elements that were masked with infinities: {counted} in {each.tensor}.",
                advice="Leave the masked elements out, or mask with 0 where they are added up.",
            )
    return None
