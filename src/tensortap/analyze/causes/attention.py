"""Softmax and attention over nothing."""

from __future__ import annotations

from tensortap.analyze.case import Case
from tensortap.analyze.causes.overflow import product
from tensortap.analyze.causes.words import count
from tensortap.analyze.findings import Cause

__all__ = ["attention", "cross_entropy", "softmax"]


def softmax(case: Case) -> Cause | None:
    """Rows in which nothing is left to choose from, or an infinity."""
    given = case.health(0)
    if given is None:
        return None
    if case.out.nan and given.neg_inf:
        dim = case.number("dimension")
        width = (
            given.shape[int(dim)]
            if dim is not None and given.shape and -len(given.shape) <= dim < len(given.shape)
            else 0
        )
        rows = (
            f" {int(case.out.nan) // width} of {int(given.elements) // width} rows are all −inf, so"
            if width
            else ""
        )
        return Cause(
            "fully-masked-row",
            f"{case.word} over a fully masked row:{rows} it divides 0 by 0 there.",
            advice="Leave at least one element of every row unmasked, or use a large negative number such as "
            f"{case.api('lowest')} instead of −inf.",
        )
    if case.out.nan and given.pos_inf:
        return Cause(
            "softmax-of-infinity", f"{case.word} of +inf: {count(given.pos_inf, given.elements, '+inf')}."
        )
    return None


def cross_entropy(case: Case) -> Cause | None:
    """The same in a loss that takes scores: of a class that is masked, the loss is infinite."""
    scores = case.health(0)
    if scores is not None and scores.neg_inf and case.out.pos_inf and not case.out.nan:
        return Cause(
            "masked-target",
            f"The loss picks a class whose score is −inf: {count(scores.neg_inf, scores.elements, '−inf')} in "
            f"{case.arguments[0]}.",
            advice="A target is masked out; mask the loss at these places, or mask with a large negative number.",
        )
    return softmax(case)


def attention(case: Case) -> Cause | None:
    """The same inside of an attention, which is also a product."""
    masked = [each for each in case.inputs if each.health is not None and each.health.neg_inf]
    if case.out.nan and masked:
        return Cause(
            "fully-masked-row",
            f"Attention over a fully masked row: the mask {masked[0].tensor} leaves some queries nothing to attend to, "
            "and the softmax divides 0 by 0 there.",
            advice="Leave at least one element of every row unmasked.",
        )
    return product(case)
