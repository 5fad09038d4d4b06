"""What became of everything that was streamed to a debug server, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tensortap.sink.base import log
from tensortap.sink.reasons import SPOOLED

__all__ = ["Outcome"]


class Outcome(NamedTuple):
    """What became of the records of all runs.

    Attributes:
        address: of the server.
        runs: how many there were.
        written: records that arrived.
        dropped: records that did not, by reason.
        skipped_runs: runs that were not even watched, because the server was down.
        delivered_runs: runs that were spooled, and have arrived since.

    >>> print(Outcome("localhost:6064", 2, 1010, {"queue full": 1}))
    2 runs for the debug server localhost:6064: 1,010 records arrived; 1 record dropped (1 queue full)
    """

    address: str
    runs: int
    written: int
    dropped: Mapping[str, int]
    skipped_runs: int = 0
    delivered_runs: int = 0

    @property
    def is_good(self) -> bool:
        """Whether everything arrived the way it should."""
        return not (self.dropped or self.skipped_runs or self.delivered_runs)

    def tell(self) -> None:
        """Say it, louder if it is not good."""
        say = log.info if self.is_good else log.warning
        say("%s.", self)

    def __str__(self) -> str:
        dropped = dict(self.dropped)
        spooled = dropped.pop(SPOOLED, 0)
        runs, records = _plural(self.runs, "run"), _plural(self.written, "record")
        sentences = [f"{runs} for the debug server {self.address}: {records} arrived"]
        if dropped:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
            sentences.append(f"{_plural(sum(dropped.values()), 'record')} dropped ({reasons})")
        if spooled:
            sentences.append(f"{_plural(spooled, 'record')} {SPOOLED}")
        if self.skipped_runs:
            sentences.append(f"{_plural(self.skipped_runs, 'run')} not watched while it was down")
        if self.delivered_runs:
            sentences.append(f"{_plural(self.delivered_runs, 'spooled run')} delivered")
        return "; ".join(sentences)


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
