"""What people override who want to see the events of a stream themselves."""

from __future__ import annotations

from typing import Any

from tensortap.records import Record, RecordBatch
from tensortap.wire.debug_service import GraphDef
from tensortap.wire.events import StreamMetadata

__all__ = ["StreamHandler"]


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
