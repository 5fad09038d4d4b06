"""What people override who want to see the events of a stream themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tensortap.records import Record, RecordBatch
from tensortap.wire.debug_service import GraphDef
from tensortap.wire.events import StreamMetadata

__all__ = ["GuardedHandler", "StreamHandler"]

log = logging.getLogger(__name__)


class StreamHandler:
    """Sees what one stream brings; the server makes one when the stream begins. Every method does nothing.

    They are called in the thread of their stream, in the order of its events, after the record was written. An
    exception is logged and counted; the stream goes on.

    Attributes:
        server: the `DebugServer` that made it.

    >>> class Printer(StreamHandler):
    ...     def on_tensor(self, record):
    ...         print(record.tensor_name)
    """

    def __init__(self, server: Any) -> None:
        self.server = server

    def on_metadata(self, metadata: StreamMetadata) -> None:
        """The run that this stream is about."""

    def on_graph(self, graph: GraphDef, device: str, timestamp: int) -> None:
        """The complete graph of one device."""

    def on_tensor(self, record: Record) -> Any:
        """A complete record.

        Returns:
            None, or an array: if the client waits at a breakpoint it goes on at once, with this value in place
            of its own.
        """

    def on_batch(self, batch: RecordBatch) -> None:
        """Many records that came together; by default each of them goes to `on_tensor`."""
        for record in batch:
            self.on_tensor(record)

    def on_end(self, error: str | None) -> None:
        """The stream has ended; `error` says why if it was not its client that ended it."""


class GuardedHandler:
    """Calls a handler so that its errors do not end the stream.

    Args:
        handler: of the stream.
        failed: called when it raised.
    """

    def __init__(self, handler: StreamHandler, failed: Callable[[], None]) -> None:
        self._handler = handler
        self._failed = failed
        # Most servers have no handler of their own, and batches are not taken apart for nothing.
        self._does_nothing = type(handler) is StreamHandler

    def tell(self, method: str, *arguments: Any) -> Any:
        """Call a method of the handler; what it returns, None if it failed."""
        return None if self._does_nothing else self.call(getattr(self._handler, method), *arguments)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on behalf of the handler; what it returns, None if it failed."""
        try:
            return function(*arguments)
        except Exception:
            self._failed()
            log.exception("%s failed; the stream goes on.", getattr(function, "__qualname__", function))
            return None
