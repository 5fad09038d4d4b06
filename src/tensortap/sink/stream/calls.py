"""Single messages to a debug server, beside its streams: tracebacks, source files, where a process is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tensortap.sink.base import notices
from tensortap.sink.stream.connection import LOST_CODES, Connection
from tensortap.sink.stream.link import Link
from tensortap.wire.transport import grpc

__all__ = ["Calls", "MakeMessages"]

MakeMessages = Callable[[], Iterable[tuple[str, bytes]]]
"""Makes pairs of a method and a message, when it is time."""


class Calls:
    """Calls that wait and calls that are under way.

    `add`, `next`, `clear` and `is_busy` are for whoever holds the lock of the link.
    """

    def __init__(self, link: Link, connection: Connection) -> None:
        self._link = link
        self._connection = connection
        self._waiting: deque[MakeMessages] = deque()
        self._under_way = 0
        self._futures: set[Any] = set()

    @property
    def is_busy(self) -> bool:
        """Whether there is something that was not sent."""
        return bool(self._waiting) or self._under_way > 0

    def add(self, make: MakeMessages) -> None:
        """Have messages made and sent."""
        self._waiting.append(make)

    def next(self) -> MakeMessages | None:
        """What is to be sent now, which counts as under way."""
        if not self._waiting:
            return None
        self._under_way += 1
        return self._waiting.popleft()

    def clear(self) -> list[Any]:
        """Forget what waits; the calls that are under way, for the caller to cancel without the lock."""
        self._waiting.clear()
        return list(self._futures)

    def send(self, make: MakeMessages) -> None:
        """Send what `next` gave."""
        options = self._link.options
        try:
            for method, message in make():
                timeout = self._link.connect_timeout_secs + options.stall_timeout_secs
                future = self._connection.call(method, message, options, timeout)
                with self._link.changed:
                    self._under_way += 1
                    self._futures.add(future)
                future.add_done_callback(self._on_sent)
        finally:
            self._ended()

    def _ended(self) -> None:
        with self._link.changed:
            self._under_way -= 1
            self._link.changed.notify_all()

    def _on_sent(self, future: Any) -> None:
        with self._link.changed:
            self._futures.discard(future)
        self._ended()
        # A server of others does not know all that ours takes.
        if future.code() not in (grpc.StatusCode.OK, grpc.StatusCode.UNIMPLEMENTED, *LOST_CODES):
            notices.warn(
                ("call", self._link.address, future.code()),
                "The debug server %s did not take what was sent beside the runs: %s %s",
                self._link.address,
                future.code().name,
                future.details(),
            )
