"""Records that stay in this process: `memcbk:///key` hands them to a function that listens under the key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tensortap.errors import FailedPreconditionError
from tensortap.records import Record, RecordBatch, RunInfo
from tensortap.sink.base import Counts, RunEnd, notices

__all__ = ["Listener", "MemorySink", "collect", "listen", "open_memory_sink"]

_listeners: dict[str, list[Listener]] = {}
_lock = threading.Lock()


class Listener:
    """A function registered under a key; `remove()` may be called twice."""

    def __init__(self, key: str, on_record: Callable[[Record], None]) -> None:
        self.key = key
        self.on_record = on_record

    def remove(self) -> None:
        """Stop listening."""
        with _lock:
            remaining = [each for each in _listeners.get(self.key, ()) if each is not self]
            if remaining:
                _listeners[self.key] = remaining
            else:
                _listeners.pop(self.key, None)


def listen(key: str, on_record: Callable[[Record], None]) -> Listener:
    """Have `on_record(record)` called, in the training thread, for every record sent to `memcbk:///key`.

    >>> listener = listen("losses", print)
    >>> listener.remove()
    """
    listener = Listener(key, on_record)
    with _lock:
        _listeners.setdefault(key, []).append(listener)
    return listener


@contextmanager
def collect(key: str) -> Iterator[list[Record]]:
    """Inside the block, a list that grows by every record sent to `memcbk:///key`.

    >>> with collect("seen") as records:
    ...     open_memory_sink("seen", RunInfo(0, 0, 0)).write(
    ...         Record("x", 0, "DebugNanCount", "", 1, "int64", (1,), bytes(8)))
    >>> [record.watch_key for record in records]
    ['x:0:DebugNanCount']
    """
    records: list[Record] = []
    listener = listen(key, records.append)
    try:
        yield records
    finally:
        listener.remove()


def open_memory_sink(key: str, info: RunInfo) -> MemorySink:
    """A sink for the listeners of a key.

    Raises:
        FailedPreconditionError: nobody listens.
    """
    with _lock:
        listeners = list(_listeners.get(key, ()))
    if not listeners:
        raise FailedPreconditionError(
            None, f"Nobody listens to memcbk:///{key}: call tensortap.sink.memory.listen({key!r}, ...) first."
        )
    return MemorySink(info, [each.on_record for each in listeners])


class MemorySink:
    """Hands each record to functions.

    Attributes:
        info: the run.
        end: how it ended, once it has.

    >>> seen = []
    >>> sink = MemorySink(RunInfo(0, 0, 0), [seen.append])
    >>> sink.write(Record("x", 0, "DebugNanCount", "", 1, "int64", (1,), bytes(8)))
    >>> sink.counts.written, len(seen)
    (1, 1)
    """

    def __init__(self, info: RunInfo, functions: list[Callable[[Record], None]]) -> None:
        self.info = info
        self.counts = Counts()
        self.end: RunEnd | None = None
        self._functions = functions

    def write(self, record: Record) -> None:
        """Call every function; one that raises makes the record count as dropped."""
        for function in self._functions:
            try:
                function(record)
            except Exception as error:
                self.counts.drop("listener failed")
                notices.warn(
                    ("listener", type(error)),
                    "A listener for records failed on %s: %r",
                    record.watch_key,
                    error,
                )
                return
        self.counts.wrote(record.nbytes)

    def write_batch(self, batch: RecordBatch) -> None:
        """Call every function with every record."""
        for record in batch:
            self.write(record)

    def finish(self, end: RunEnd) -> None:
        """Remember how the run ended."""
        self.end = end
        self.counts.muted, self.counts.failed = end.muted, end.failed

    def flush(self, timeout: float | None = None) -> bool:
        """Nothing is ever pending."""
        return True

    def close(self) -> None:
        """Nothing to release."""
