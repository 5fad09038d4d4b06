"""The sink: where the records of one run go, and exact counts of what became of them.

A sink is opened for one run, takes its records with `write` and `write_batch`, learns with `finish` that the
run is over and which nodes it executed, and may then still be busy. `flush` waits for that. A sink never
raises into the training program for a fault of its own: it counts, says so once, and goes on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from tensortap.records import Circumstances, Node, Record, RecordBatch

__all__ = ["Counts", "InteractiveSink", "Notices", "ProcessBound", "RunEnd", "Sink", "notices"]

log = logging.getLogger("tensortap.sink")


class Counts:
    """What became of the records of a run. Safe to use from several threads.

    Attributes:
        written: records that reached their destination.
        written_bytes: size of their values.
        muted: records that their debug op chose not to make.
        failed: debug ops that failed on a tensor.
        unrecorded: operations of which no record was made, because the run was too long.
        dropped: records given up, by reason.

    >>> counts = Counts()
    >>> counts.drop("queue full")
    >>> counts.as_dict()["dropped: queue full"]
    1
    """

    def __init__(self) -> None:
        self.written = 0
        self.written_bytes = 0
        self.muted = 0
        self.failed = 0
        self.unrecorded = 0
        self.dropped: dict[str, int] = {}
        self._lock = threading.Lock()

    def wrote(self, nbytes: int, records: int = 1) -> None:
        """Count records that reached their destination."""
        with self._lock:
            self.written += records
            self.written_bytes += nbytes

    def drop(self, reason: str, records: int = 1) -> None:
        """Count records given up."""
        if records:
            with self._lock:
                self.dropped[reason] = self.dropped.get(reason, 0) + records

    @property
    def lost(self) -> int:
        """Records given up for any reason."""
        with self._lock:
            return sum(self.dropped.values())

    def as_dict(self) -> dict[str, int]:
        """All counts, as they are stored with the run; each reason for dropping has a line of its own."""
        with self._lock:
            return {
                "written": self.written,
                "written_bytes": self.written_bytes,
                "muted": self.muted,
                "failed": self.failed,
                **({"unrecorded": self.unrecorded} if self.unrecorded else {}),
                "dropped": sum(self.dropped.values()),
                **{f"dropped: {reason}": number for reason, number in self.dropped.items()},
            }

    def __repr__(self) -> str:
        return f"Counts({self.as_dict()})"


class ProcessBound:
    """A sink whose run belongs to the process that opened it; its copy in a forked process drops what it gets.

    Attributes:
        counts: what became of the records.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._pid = os.getpid()
        self._counts_are_ours = True

    def _is_orphan(self) -> bool:
        """Whether this is such a copy."""
        if os.getpid() == self._pid:
            return False
        if self._counts_are_ours:
            self._counts_are_ours = False
            self.counts = Counts()  # the lock of the old one may be held by a thread that is not here
        return True


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended, as its sinks are told.

    Attributes:
        nodes: what it executed, in order.
        error: text of the error that ended it, None if it completed.
        muted: records that debug ops chose not to make.
        failed: debug ops that failed on a tensor.
        gated: watch keys of the gated watches on these nodes, for sinks that have gates.
        unrecorded: operations that were only counted, because there were too many.
        circumstances: what else the engine knows of the run.

    >>> RunEnd(error="out of memory").nodes
    ()
    """

    nodes: Sequence[Node] = ()
    error: str | None = None
    muted: int = 0
    failed: int = 0
    gated: Sequence[str] = ()
    unrecorded: int = 0
    circumstances: Circumstances = field(default_factory=Circumstances)


@runtime_checkable
class Sink(Protocol):
    """Takes the records of one run."""

    @property
    def counts(self) -> Counts:
        """What became of the records."""

    def write(self, record: Record) -> None:
        """Take one record, whose data nobody else will change. Never raises, never blocks for long."""

    def write_batch(self, batch: RecordBatch) -> None:
        """Take many records, with the same effect as taking each."""

    def finish(self, end: RunEnd) -> None:
        """The run is over; nothing more will be written."""

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything taken so far has arrived; False if the timeout passed first."""

    def close(self) -> None:
        """Release everything; harmless when called again."""


@runtime_checkable
class InteractiveSink(Sink, Protocol):
    """A sink whose other side has a say in the run: which gated watches it sees, and where the run stops."""

    def foresee(self, nodes: Sequence[Node], gated: Sequence[str] = ()) -> None:
        """Begin the run, with the graph it will execute and the gated watches on it as far as they are known."""

    def open_gates(self) -> frozenset[str]:
        """Watch keys whose gates are open for this run; may wait a moment to learn it."""

    def breakpoints(self) -> frozenset[str]:
        """Watch keys at which `write` waits for a reply."""

    def replacement(self, tensor_name: str) -> Any:
        """The value that the reply put in the place of a tensor, given once; None if it left it alone."""


@dataclass
class Notices:
    """Warnings that are given once, however often their cause comes back.

    >>> said = Notices()
    >>> said.is_first("disk full"), said.is_first("disk full")
    (True, False)
    """

    limit: int = 10_000
    _given: dict[object, None] = field(default_factory=dict)

    def is_first(self, key: object) -> bool:
        """Whether this is the first time that `key` comes up."""
        if key in self._given:
            return False
        if len(self._given) >= self.limit:  # a key per run must not become a leak
            self._given.pop(next(iter(self._given)), None)
        self._given[key] = None
        return True

    def forget(self) -> None:
        """Give every warning again the next time its cause comes up."""
        self._given.clear()

    def warn(self, key: object, message: str, *args: object) -> None:
        """Log a warning, the first time only."""
        if self.is_first(key):
            log.warning(message, *args)


notices = Notices()
"""Shared by all sinks of the process."""


def by_device(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """Nodes grouped by the device that executed them, in order."""
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.device, []).append(node)
    return groups
