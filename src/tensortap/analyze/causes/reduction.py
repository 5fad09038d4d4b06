"""Losses and means over nothing."""

from __future__ import annotations

from tensortap.analyze.case import Case
from tensortap.analyze.causes.words import count
from tensortap.analyze.findings import Cause

__all__ = ["alignment", "loss", "mean"]


def loss(case: Case) -> Cause | None:
    """Losses that pick what is masked, or nothing."""
    given = case.health(0)
    if given is None:
        return None
    if given.neg_inf and case.out.infinities:
        return Cause(
            "masked-target",
            f"The loss picks a class whose log probability is −inf: {count(given.neg_inf, given.elements, '−inf')} in "
            f"{case.arguments[0]}.",
            advice="A target is masked out or has probability 0; mask the loss at these places, or smooth the labels.",
        )
    if case.out.nan and not given.is_bad and case.op == "nll_loss":
        return Cause(
            "mean-of-nothing",
            "The loss is a mean over no elements: 0/0. Every target of this batch is ignored (ignore_index) or "
            "has a weight of 0.",
            advice="Skip such batches, or use reduction='sum' and divide by a count of at least 1.",
        )
    return None


def mean(case: Case) -> Cause | None:
    """Means of nothing, and variances of one."""
    given = case.health(0)
    if case.out.nan and given is not None and (not given.elements or case.op == "segment_reduce"):
        empty = f"{case.arguments[0]} is empty" if not given.elements else "a segment is empty"
        return Cause(
            "mean-of-nothing",
            f"{case.word} over no elements is NaN: {empty}.",
            advice="Something before selects nothing, such as a mask without a True.",
        )
    if case.op in ("std", "var", "std_mean", "var_mean") and case.out.nan:
        return Cause(
            "variance-of-one",
            f"{case.word} of a single element is NaN: it divides by the number of elements minus one.",
            advice="Leave the normalisation out where there is a single element, or see to it that there are more: "
            "with correction=0 the result is 0, and dividing by it gives NaN again unless an epsilon is added.",
        )
    return None


def alignment(case: Case) -> Cause | None:
    """Sequences that cannot be aligned."""
    if case.finding.slot or not case.out.pos_inf:
        return None
    return Cause(
        "impossible-alignment",
        "No alignment is possible: a target is longer than its input, counting a blank between equal letters.",
        advice="Leave such examples out, or pass zero_infinity=True.",
    )
