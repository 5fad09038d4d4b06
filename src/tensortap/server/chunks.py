"""Tensors and graphs that arrive in chunks, and how many bytes of them wait for the last one."""

from __future__ import annotations

import threading

from tensortap.records import Record
from tensortap.server.limits import Limits
from tensortap.wire.debug_service import Event, WireError
from tensortap.wire.encoding import find_field
from tensortap.wire.events import GraphJoiner, ReceivedGraph, TensorJoiner

__all__ = ["Chunks", "PendingChunks"]

_TENSOR_CONTENT = (5, 1, 8, 4)
"""Event.summary > value > tensor > tensor_content."""
_LARGE_BYTES = 64 << 10
"""From here on, looking for the content in the message costs less than copying it."""


class PendingChunks:
    """What waits on all streams together; safe to use from several threads.

    >>> pending = PendingChunks(100)
    >>> pending.change(60)
    >>> pending.change(41)
    Traceback (most recent call last):
    tensortap.wire.debug_service.WireError: More than 100 bytes wait for missing chunks.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self.nbytes = 0

    def change(self, nbytes: int) -> None:
        """Count bytes that wait, or wait no more.

        Raises:
            WireError: there are too many; the stream that asked is the one to go.
        """
        with self._lock:
            if nbytes > 0 and self.nbytes + nbytes > self._max_bytes:
                raise WireError(f"More than {self._max_bytes} bytes wait for missing chunks.")
            self.nbytes += nbytes


class Chunks:
    """Joins the chunks of one stream."""

    def __init__(self, limits: Limits, pending: PendingChunks) -> None:
        self._graphs = GraphJoiner(limits.value_bytes)
        self._tensors = TensorJoiner(limits.value_bytes)
        self._pending = pending
        self._counted = 0

    @property
    def are_incomplete(self) -> bool:
        """Whether something has not arrived whole."""
        return self._counted > 0

    def add_tensor(self, event: Event, message: bytes) -> Record | None:
        """The record that is complete with this event, if one is."""
        content = find_field(message, _TENSOR_CONTENT) if len(message) > _LARGE_BYTES else None
        record = self._tensors.add(event, content)
        self._account()
        return record

    def add_graph(self, event: Event) -> ReceivedGraph | None:
        """The graph that is complete with this event, if one is."""
        graph = self._graphs.add(event)
        self._account()
        return graph

    def close(self) -> None:
        """Nothing waits any more."""
        self._pending.change(-self._counted)
        self._counted = 0

    def _account(self) -> None:
        waiting = self._tensors.pending_bytes + self._graphs.pending_bytes
        if waiting != self._counted:
            self._pending.change(waiting - self._counted)
            self._counted = waiting
