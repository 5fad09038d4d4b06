"""The course of learning rates, as the rules about them see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.lines import first_match
from tensortap.records import Frame, Update

__all__ = ["Rates", "rates_of", "setter_of"]

_SET_BY_HAND = r"\[['\"]lr['\"]\]\s*[-*/+]?=[^=]"


class Rates(NamedTuple):
    """The largest learning rate of an optimizer in each update that was looked at."""

    called: str
    updates: list[Update]
    rates: list[float]


def rates_of(evidence: Evidence) -> Iterator[Rates]:
    """Those of each optimizer whose rates are known."""
    for optimizer, updates in evidence.optimizers.items():
        known = [
            (update, max(group.rate or 0.0 for group in update.groups))
            for update in updates
            if update.groups and all(group.rate is not None for group in update.groups)
        ]
        if known:
            called = known[-1][0].variable or optimizer
            yield Rates(called, [update for update, _ in known], [rate for _, rate in known])


def setter_of(evidence: Evidence, updates: list[Update]) -> Frame | None:
    """The line that sets the learning rate: where a schedule is told to step, or one that writes it by hand."""
    for update in reversed(updates):
        for event in reversed(update.events):
            if event.what == "schedule" and event.source is not None and event.who == update.optimizer:
                return event.source
    last = updates[-1]
    file = None if last.source is None else last.source.file
    if file is not None and evidence.runs:
        found = first_match(evidence.runs[-1], file, _SET_BY_HAND)
        if found is not None:
            return found
    return last.source
