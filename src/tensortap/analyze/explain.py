"""Why an operation made a bad value: one sentence of cause, with the numbers that prove it (see `causes`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tensortap.analyze.case import Case
from tensortap.analyze.causes import KINDS, RULES
from tensortap.analyze.causes.arrival import with_unwritten
from tensortap.analyze.causes.gradient import with_hiding
from tensortap.analyze.findings import UNEXPLAINED, Cause, Finding

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts

__all__ = ["ALL_KINDS", "explain"]

ALL_KINDS = KINDS | {"filter", "input-not-recorded", "no-graph", "only-nan-counted", UNEXPLAINED.kind}
"""Every kind of cause: those of rules, and what is said if none has recognised a case."""


def explain(finding: Finding, facts: RunFacts | None = None) -> Cause:
    """The cause of a finding; honest if it is not recognised.

    Args:
        finding: the producer.
        facts: its run, for recorded values.
    """
    if finding.node.op_type == "?":
        return Cause(
            "no-graph",
            "This is the first bad value in time; the graph of the run was not stored, so what it was made of is not "
            "known.",
        )
    if not finding.health.is_bad:
        return Cause("filter", "The condition holds for its output, and for none of its inputs.")
    case = Case(finding, facts)
    for entry in RULES:
        if entry.ops and case.op not in entry.ops:
            continue
        cause = entry.tell(case)
        if cause is not None:
            told = with_unwritten(with_hiding(cause, case), case)
            return _with_element(told, case, entry.is_elementwise)
    return _with_element(with_unwritten(_unrecognised(case), case), case, False)


def _with_element(cause: Cause, case: Case, elementwise: bool) -> Cause:
    sentences = (
        case.done_in_one(),
        case.which_execution(),
        case.first_element() if elementwise else _plain_element(case),
        case.only_sample(),
    )
    known = tuple(each for each in sentences if each is not None)
    return replace(cause, proof=(*cause.proof, *known))


def _plain_element(case: Case) -> str | None:
    found = None if case.op == "executable" else case.where()  # of that, only the kinds of values are known
    return None if found is None else case.element_sentence(*found)


def _unrecognised(case: Case) -> Cause:
    by_nature = _by_nature(case)
    if by_nature is not None:
        return by_nature
    if any(each.health is not None and each.health.is_count for each in case.inputs):
        return Cause(
            "only-nan-counted",
            "The cause is not certain: only NaNs were counted, so an infinity among the inputs would not be seen.",
            advice="Record DebugNumericSummary instead of DebugNanCount.",
        )
    unknown = [each.tensor for each in case.inputs if each.status == "unknown"]
    if unknown:
        names = ", ".join(unknown[:3])
        is_unread = all(each.health is not None for each in case.inputs if each.status == "unknown")
        seen = "looked at" if is_unread else "recorded"
        return Cause(
            "input-not-recorded",
            f"The cause is not certain: of what {case.word} was given, {names} was not {seen}, so the bad value may "
            "have come with it.",
            advice="" if is_unread else "Watch everything, or at least the inputs of this node.",
        )
    return UNEXPLAINED


_BY_NATURE = {
    ("log", "-inf"): ("log-of-zero", "log of zero"),
    ("log", "nan"): ("log-of-negative", "log of a negative number"),
    ("sqrt", "nan"): ("sqrt-of-negative", "sqrt of a negative number"),
    ("rsqrt", "nan"): ("rsqrt-of-negative", "rsqrt of a negative number"),
    ("rsqrt", "+inf"): ("division-by-zero", "rsqrt of zero"),
    ("reciprocal", "+inf"): ("division-by-zero", "division by zero, or by something close to it"),
    ("div", "nan"): ("division-by-zero", "zero divided by zero"),
    ("div", "+inf"): ("division-by-zero", "division by zero, or by something close to it"),
    ("div", "-inf"): ("division-by-zero", "division by zero, or by something close to it"),
    ("exp", "+inf"): ("exp-overflow", "exp of a number too large for the dtype"),
    ("acos", "nan"): ("acos-out-of-range", "acos of a number beyond ±1"),
    ("asin", "nan"): ("asin-out-of-range", "asin of a number beyond ±1"),
    ("pow", "nan"): ("power-of-negative", "a negative number to a power that is no integer"),
    ("to_copy", "+inf"): ("cast-overflow", "a number too large for the dtype it is cast to"),
    ("to_copy", "-inf"): ("cast-overflow", "a number too large for the dtype it is cast to"),
}
"""What an operation must have been given, if it was given nothing bad and made this."""


def _by_nature(case: Case) -> Cause | None:
    """Where the numbers of the inputs are not known, only that they were good."""
    if any(each.health is not None for each in case.inputs) or any(
        each.status != "good" for each in case.inputs
    ):
        return None
    found = _BY_NATURE.get((case.op, next(iter(case.out.bad_counts.split()[1:2]), "").strip(",")))
    if found is None:
        return None
    return Cause(
        found[0], f"{found[1]}: nothing else makes this of good inputs. Their numbers were not recorded."
    )
