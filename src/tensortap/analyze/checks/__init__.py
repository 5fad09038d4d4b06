"""What is silently wrong in a program: rules over its updates and kept runs, grouped by what they look at.

A rule is a small module of its own with a `RULE`; each group lists its rules. `check_session` asks them all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tensortap.analyze.checks import data, loss, signal, updates
from tensortap.analyze.checks.evidence import Evidence, evidence_of
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts
    from tensortap.reader import SessionDir

__all__ = ["GROUPS", "MOST_LIKELY", "RULES", "CheckFinding", "Rule", "check", "check_session", "told"]

log = logging.getLogger("tensortap.checks")

GROUPS: dict[str, tuple[Rule, ...]] = {
    "updates": updates.RULES,
    "signal": signal.RULES,
    "loss": loss.RULES,
    "data and modes": data.RULES,
}
"""The rules, by what they look at."""

RULES: dict[str, Rule] = {rule.kind: rule for rules in GROUPS.values() for rule in rules}
"""The rules, by kind."""

MOST_LIKELY = 3
"""So many findings that are only likely are told: a long list is read by nobody."""


def check_session(
    session: SessionDir,
    *,
    accept: Sequence[str] = (),
    task: int | None = None,
    cache: MutableMapping[str, RunFacts] | None = None,
) -> list[CheckFinding]:
    """What is silently wrong in the program of a session, the most telling first.

    Args:
        session: its directory, finished or growing.
        accept: what is not to be told, as `kind:subject` with wildcards, or `kind`.
        task: only look at what this rank wrote.
        cache: runs that have been read before; it is filled.
    """
    found: dict[str, CheckFinding] = {}
    for evidence in evidence_of(session, cache):
        if task is None or task == evidence.task:
            for finding in check(evidence):
                found.setdefault(finding.key, replace(finding, rank=evidence.task))
    return [each for each in _sorted(found.values()) if not is_accepted(each, accept)]


def check(evidence: Evidence) -> list[CheckFinding]:
    """What all rules find in the evidence of one task. A rule that fails finds nothing."""
    found: list[CheckFinding] = []
    for rule in RULES.values():
        try:
            found += rule.find(evidence)
        except Exception:
            log.warning("The rule %s failed; this is a fault of tensortap.", rule.kind, exc_info=True)
    hidden = {kind for each in found for kind in RULES[each.kind].hides}
    return _sorted(each for each in found if each.kind not in hidden)


def told(findings: Iterable[CheckFinding]) -> list[CheckFinding]:
    """Those that are told: all that are sure, and the most telling of the others."""
    ordered = _sorted(findings)
    likely = [each for each in ordered if not each.is_sure][:MOST_LIKELY]
    return [each for each in ordered if each.is_sure or each in likely]


def is_accepted(finding: CheckFinding, accept: Iterable[str]) -> bool:
    """Whether somebody has said that he knows of it.

    >>> finding = CheckFinding("same-batch", "model/x", 3, "likely", "It is the same.")
    >>> is_accepted(finding, ["same-batch:model/*"]), is_accepted(finding, ["same-batch:y"])
    (True, False)
    """
    for each in accept:
        kind, _, subject = each.strip().partition(":")
        if fnmatchcase(finding.kind, kind.strip()) and fnmatchcase(finding.subject, subject.strip() or "*"):
            return True
    return False


def _sorted(findings: Iterable[CheckFinding]) -> list[CheckFinding]:
    return sorted(findings, key=lambda each: (not each.is_sure, -each.weight, each.step, each.key))
