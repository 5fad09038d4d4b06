"""What is silently wrong in a program: rules over its updates and kept runs, grouped by what they look at.

A rule is a small module of its own with a `RULE`; each group lists its rules. `check_session` asks them all.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tensortap.analyze.checks import data, loss, signal, updates
from tensortap.analyze.checks.evidence import (
    ENOUGH_TENSORS,
    Evidence,
    RunsNotRead,
    evidence_of,
    evidence_of_updates,
)
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts
    from tensortap.reader import SessionDir
    from tensortap.store.updates import GrowingUpdates

__all__ = [
    "GROUPS",
    "MOST_LIKELY",
    "RULES",
    "Account",
    "CheckFinding",
    "Rule",
    "check",
    "check_session",
    "check_updates",
    "told",
]

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


class Account:
    """What a check could look at, and what it could not.

    Attributes:
        runs: that were looked at.
        updates: that were looked at.
        trains: whether a parameter is known to have had a gradient in any of them.
        lacking: kinds that nothing can be said of, with what is not there: `updates`, `runs`.
        failed: kinds whose rule failed, which is a fault of tensortap.
    """

    def __init__(self) -> None:
        self.runs = self.updates = 0
        self.trains = False
        self.lacking: dict[str, set[str]] = {}
        self.failed: set[str] = set()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "runs": self.runs,
            "updates": self.updates,
            "trains": self.trains,
            "unknown": {kind: sorted(lacking) for kind, lacking in sorted(self.lacking.items())},
            "failed": sorted(self.failed),
        }


def check_session(
    session: SessionDir,
    *,
    accept: Sequence[str] = (),
    task: int | None = None,
    cache: MutableMapping[str, RunFacts] | None = None,
    account: Account | None = None,
    pause: Callable[[], None] = lambda: None,
    enough_tensors: int = ENOUGH_TENSORS,
    so_far: GrowingUpdates | None = None,
) -> list[CheckFinding]:
    """What is silently wrong in the program of a session, the most telling first.

    Args:
        session: its directory, finished or growing.
        accept: what is not to be told, as `kind:subject` with wildcards, or `kind`.
        task: only look at what this rank wrote.
        cache: runs that have been read before; it is filled.
        account: told what there was to look at.
        pause: called before each run that is read and each rule that is asked; it may give up by an error.
        so_far: the updates of the session, if some have been read before.
        enough_tensors: no more runs are read once they have so many.
    """
    found: dict[str, CheckFinding] = {}
    for evidence in evidence_of(session, cache, pause, enough_tensors, so_far):
        if task is None or task == evidence.task:
            for finding in check(evidence, account, pause):
                found.setdefault(finding.key, replace(finding, rank=evidence.task))
    return [each for each in _sorted(found.values()) if not is_accepted(each, accept)]


def check_updates(so_far: GrowingUpdates, accept: Sequence[str] = ()) -> list[CheckFinding]:
    """What is sure by the updates of a session alone, which are read in a moment, unlike its runs.

    What a rule that has to wait for the runs might yet hide is not among it.
    """
    found: dict[str, CheckFinding] = {}
    for evidence in evidence_of_updates(so_far):
        findings, waiting = _ask(evidence)
        hidden = {
            kind for each in (*waiting, *(each.kind for each in findings)) for kind in RULES[each].hides
        }
        for finding in findings:
            if finding.is_sure and finding.kind not in hidden:
                found.setdefault(finding.key, replace(finding, rank=evidence.task))
    return [each for each in _sorted(found.values()) if not is_accepted(each, accept)]


def check(
    evidence: Evidence, account: Account | None = None, pause: Callable[[], None] = lambda: None
) -> list[CheckFinding]:
    """What all rules find in the evidence of one task. A rule that fails finds nothing, and is accounted for."""
    account = Account() if account is None else account
    account.runs += len(evidence.runs)
    account.updates += len(evidence.updates)
    account.trains |= bool(evidence.updates) or any(run.gradients for run in evidence.runs)
    found, _ = _ask(evidence, account, pause)
    hidden = {kind for each in found for kind in RULES[each.kind].hides}
    return _sorted(each for each in found if each.kind not in hidden)


def _ask(
    evidence: Evidence, account: Account | None = None, pause: Callable[[], None] = lambda: None
) -> tuple[list[CheckFinding], list[str]]:
    """What the rules find, and which kinds have to wait for runs to be read."""
    found: list[CheckFinding] = []
    waiting: list[str] = []
    for rule in RULES.values():
        pause()
        evidence.asked.clear()
        try:
            found += list(rule.find(evidence))
        except RunsNotRead:
            waiting.append(rule.kind)
        except Exception:
            _log_once(rule.kind)
            if account is not None:
                account.failed.add(rule.kind)
        else:
            lacking = evidence.lacks()
            if account is not None and lacking:
                account.lacking.setdefault(rule.kind, set()).update(lacking)
    return found, waiting


@functools.cache
def _log_once(kind: str) -> None:
    log.warning("The rule %s failed; this is a fault of tensortap.", kind, exc_info=True)


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
