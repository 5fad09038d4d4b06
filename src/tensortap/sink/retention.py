"""Which runs are kept: chosen steps, every so many runs, only runs with something bad and those before them.

A `Retention` says it, as data. A `Keeper` does it for one session: every run gets a `RetainedSink`, which
either writes at once or holds its records back until it is known whether the run is worth keeping.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from tensortap.records import Record, RecordBatch
from tensortap.sink.base import Counts, RunEnd, Sink, notices
from tensortap.sink.filters import RecordFilter, has_inf_or_nan, look_at_pills

__all__ = ["DiscardableSink", "Keeper", "RetainedSink", "Retention", "is_sample"]

NO_MEMORY = "ring memory"


def is_sample(index: int) -> bool:
    """Whether a run is kept, or an update looked at, for its number alone.

    >>> [index for index in range(1, 400) if is_sample(index)]
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300]
    """
    return not str(index)[1:].strip("0")


@dataclass(frozen=True)
class Retention:
    """Which runs of a session to watch and to keep. The default keeps all of them.

    Attributes:
        steps: watch the runs at these global steps, as a set, a range or anything else with `in`.
        every: watch every so many runs, beginning with the first. With `steps` too, either one will do.
        when: keep a run only if this is true of one of its records: `"inf_or_nan"`, or a function of a
            `Record`.
        last: with `when`, hold the last so many runs back and keep them too once it fires, so that the way to
            the bad value is there; without `when`, keep the last so many runs and delete older ones.
        hold: where runs wait: `"memory"`, or `"disk"`, where they also survive a crash of the process.
        memory_bytes: limit for runs that wait in memory; the oldest go first.
        on_error: a run that fails counts as bad.

    >>> Retention(every=10).wants_run(index=20, step=0)
    True
    >>> Retention(steps=range(5), when="inf_or_nan", last=3).wants_run(index=7, step=7)
    False
    """

    steps: Container[int] | None = None
    every: int | None = None
    when: Literal["inf_or_nan"] | RecordFilter | None = None
    last: int = 0
    hold: Literal["memory", "disk"] = "memory"
    memory_bytes: int = 256 << 20
    on_error: bool = True

    def __post_init__(self) -> None:
        if self.steps is not None and not hasattr(self.steps, "__contains__"):
            raise TypeError(f"steps must be a set, a range or a list of steps, got {self.steps!r}.")
        if self.every is not None and (not isinstance(self.every, int) or self.every < 1):
            raise ValueError(f"every must be at least 1, got {self.every!r}.")
        if self.when is not None and self.when != "inf_or_nan" and not callable(self.when):
            raise TypeError(f"when must be 'inf_or_nan' or a function of a record, got {self.when!r}.")
        if self.last < 0:
            raise ValueError(f"last must not be negative, got {self.last!r}.")
        if self.hold not in ("memory", "disk"):
            raise ValueError(f"hold must be 'memory' or 'disk', got {self.hold!r}.")

    def wants_run(self, index: int, step: int) -> bool:
        """Whether to watch a run at all."""
        if self.watches_all:
            return True
        return (self.steps is not None and step in self.steps) or (
            self.every is not None and index % self.every == 0
        )

    @property
    def watches_all(self) -> bool:
        """Whether every run is watched."""
        return self.steps is None and self.every is None

    @property
    def keeps_all(self) -> bool:
        """Whether every watched run is kept."""
        return self.when is None and self.last == 0

    @property
    def waits_in_memory(self) -> bool:
        """Whether a run makes no directory before it is known to be kept."""
        return self.when is not None and self.hold == "memory"

    @property
    def filter(self) -> RecordFilter | None:
        """`when`, as a function."""
        return has_inf_or_nan if self.when == "inf_or_nan" else self.when


class Keeper:
    """Holds the runs of one session back and lets them go.

    >>> keeper = Keeper(Retention(last=3))
    >>> keeper.held
    0
    """

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self._held: deque[RetainedSink] = deque()
        self._lock = threading.RLock()
        self._bytes = 0

    @property
    def held(self) -> int:
        """How many runs wait."""
        return len(self._held)

    def hold(self, run: RetainedSink) -> None:
        """Let a finished run wait, and forget the oldest one if there are too many."""
        with self._lock:
            self._held.append(run)
            while len(self._held) > self.retention.last:
                self._held.popleft().forget()

    def keep_all(self) -> None:
        """Something happened: write every run that waits, oldest first."""
        with self._lock:
            while self._held:
                self._held.popleft().keep()

    def keep_newest(self, records: int, least: int) -> int:
        """Write the newest of the runs that wait, which have so many records together, and `least` of them in any case.

        Returns:
            How many were forgotten.
        """
        with self._lock:
            sizes = [run.records for run in self._held]
            forgotten = 0
            while len(self._held) > least and sum(sizes[forgotten:]) > records:
                self._held.popleft().forget()
                forgotten += 1
            self.keep_all()
            return forgotten

    def close(self) -> None:
        """Forget what waits; without a filter the last runs are there to stay."""
        with self._lock:
            if self.retention.when is not None:
                while self._held:
                    self._held.popleft().forget()
            self._held.clear()

    def reserve(self, nbytes: int) -> bool:
        """Make room in memory, at the cost of the oldest runs; False if even that does not do."""
        with self._lock:
            while self._bytes + nbytes > self.retention.memory_bytes and self._held:
                self._held.popleft().forget()
            if self._bytes + nbytes > self.retention.memory_bytes:
                return False
            self._bytes += nbytes
            return True

    def release(self, nbytes: int) -> None:
        """Give memory back."""
        with self._lock:
            self._bytes -= nbytes


class DiscardableSink(Sink, Protocol):
    """A sink that can take back what it wrote."""

    def discard(self) -> None:
        """Delete the run, finished or not."""


class RetainedSink:
    """The sink of one run that may or may not be kept.

    Args:
        keeper: of the session.
        open_file: opens the sink that writes to disk; it has `discard()`.
    """

    def __init__(self, keeper: Keeper, open_file: Callable[[], DiscardableSink]) -> None:
        self._keeper = keeper
        self._open_file = open_file
        self._filter = keeper.retention.filter
        self._counts = Counts()
        self._held: list[Record | RecordBatch] = []
        self._nbytes = 0
        self._end: RunEnd | None = None
        self._fired = False
        self._file: DiscardableSink | None = None if keeper.retention.waits_in_memory else self._opened()

    @property
    def counts(self) -> Counts:
        """Of the file, once there is one."""
        return self._counts if self._file is None else self._file.counts

    @property
    def records(self) -> int:
        """How many wait in memory."""
        return sum(len(each) if isinstance(each, RecordBatch) else 1 for each in self._held)

    def write(self, record: Record) -> None:
        """Take one record, and see whether it makes the run worth keeping."""
        if not self._fired and self._filter is not None and self._is_bad(record):
            self._fire()
        if self._file is not None:
            self._file.write(record)
        else:
            self._hold(record)

    def write_batch(self, batch: RecordBatch) -> None:
        """Take a batch, after having seen whether one of its records makes the run worth keeping."""
        if not self._fired and self._filter is not None and self._has_bad(batch):
            self._fire()
        if self._file is not None:
            self._file.write_batch(batch)
        elif not self._reserve(batch.nbytes):
            for record in batch:
                # Of what fits a copy is kept, because a view would keep the memory of all the others.
                self._hold(replace(record, data=bytes(record.data)))
        else:
            self._held.append(batch)

    def finish(self, end: RunEnd) -> None:
        """Keep the run, or let it wait."""
        if self._end is not None:
            return
        self._end = end
        retention = self._keeper.retention
        if end.error is not None and retention.on_error and not self._fired:
            self._fire()
        if self._file is not None:
            self._file.finish(end)
        if not self._fired:
            self._keeper.hold(self)

    def keep(self) -> None:
        """The run that waited is wanted."""
        if self._file is None:
            file = self._to_file()
            if self._end is not None:
                file.finish(self._end)

    def forget(self) -> None:
        """The run that waited is not wanted."""
        self._drop_records()
        if self._file is not None:
            self._file.discard()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait for the file, if there is one."""
        return True if self._file is None else bool(self._file.flush(timeout))

    def close(self) -> None:
        """Finish the run if nobody has."""
        self.finish(RunEnd(error="The sink was closed before the run ended."))

    def _fire(self) -> None:
        self._fired = True
        self._keeper.keep_all()
        self._to_file()

    def _opened(self) -> DiscardableSink:
        return self._open_file()

    def _hold(self, record: Record) -> None:
        if self._reserve(record.nbytes):
            self._held.append(record)
        else:
            self._counts.drop(NO_MEMORY)

    def _reserve(self, nbytes: int) -> bool:
        if not self._keeper.reserve(nbytes):
            return False
        self._nbytes += nbytes
        return True

    def _to_file(self) -> DiscardableSink:
        if self._file is None:
            self._file = self._opened()
            for reason, number in self._counts.dropped.items():
                self._file.counts.drop(reason, number)
            for item in self._held:
                if isinstance(item, RecordBatch):
                    self._file.write_batch(item)
                else:
                    self._file.write(item)
            self._drop_records()
        return self._file

    def _drop_records(self) -> None:
        self._keeper.release(self._nbytes)
        self._held, self._nbytes = [], 0

    def _has_bad(self, batch: RecordBatch) -> bool:
        if self._filter is has_inf_or_nan:
            found, batch = look_at_pills(batch)
            if found:
                return True
        return any(self._is_bad(record) for record in batch)

    def _is_bad(self, record: Record) -> bool:
        assert self._filter is not None
        try:
            return bool(self._filter(record))
        except Exception as error:
            notices.warn(
                ("filter", self._filter), "The retention filter failed on %s: %r", record.watch_key, error
            )
            return False
