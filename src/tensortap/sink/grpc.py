"""Records to a debug server: the sink of a `grpc://host:port[/path]` URL, for one run.

It takes records in the training thread and leaves everything else to the sender of its server.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from tensortap.records import Node, Record, RecordBatch, RunInfo
from tensortap.sink.base import ProcessBound, RunEnd, notices
from tensortap.sink.reasons import AFTER_FORK
from tensortap.sink.stream.run_stream import RunStream
from tensortap.sink.stream.sender import Sender
from tensortap.sink.stream.senders import sender_of
from tensortap.sink.stream_options import StreamOptions
from tensortap.sink.wishes import wishes_of
from tensortap.watch.urls import DebugUrl, parse_debug_url
from tensortap.wire.events import StreamMetadata
from tensortap.wire.tensor_proto import tensor_from_proto

__all__ = ["GrpcSink", "address_of", "open_grpc_sink"]


class GrpcSink(ProcessBound):
    """Streams one run to a debug server, off the training thread.

    Args:
        url: `grpc://host:port[/path]`; the path is told to the server.
        info: the run.
        options: how to stream.
        session: a name that the ranks of one launch share; made up for this process by default.

    >>> sink = GrpcSink("grpc://localhost:1", RunInfo(0, 0, 17), StreamOptions(connect_timeout_secs=0.1))
    >>> sink.write(Record("x", 0, "DebugNanCount", "/device:CPU:0", 18, "int64", (1,), bytes(8)))
    >>> sink.finish(RunEnd())
    >>> sink.flush(), sink.counts.written, sink.counts.dropped
    (True, 0, {'server unreachable': 1})
    """

    def __init__(
        self, url: str | DebugUrl, info: RunInfo, options: StreamOptions | None = None, session: str = ""
    ) -> None:
        parsed = parse_debug_url(url) if isinstance(url, str) else url
        super().__init__()
        self.info = info
        self._gates = wishes_of(str(parsed))
        self._sender = sender_of(address_of(parsed), options or StreamOptions())
        host, process, own_session = _identity()
        self._metadata = StreamMetadata(info, parsed.path, session or own_session, host, process)
        self._foreseen = RunEnd()
        self._replacements: dict[str, Any] = {}

    @property
    def sender(self) -> Sender:
        """What sends, for all runs to this server."""
        return self._sender

    @cached_property
    def _stream(self) -> RunStream:
        return self._sender.open(self._metadata, self._gates, self.counts, self._foreseen)

    def foresee(self, nodes: Sequence[Node], gated: Sequence[str] = ()) -> None:
        """Begin to stream; the graph comes first if it is known (F6)."""
        if not self._is_orphan():
            self._foreseen = RunEnd(nodes=tuple(nodes), gated=gated)
            self._stream  # noqa: B018 - from here on it is being opened

    def write(self, record: Record) -> None:
        """Take one record; at a breakpoint, wait for the server's reply."""
        if self._is_orphan():
            self.counts.drop(AFTER_FORK)
        elif record.watch_key in self._gates.breakpoints:
            self._stop_at(record)
        else:
            self._stream.add(record)

    def write_batch(self, batch: RecordBatch) -> None:
        """Take a batch whole, or none of it."""
        if self._is_orphan():
            self.counts.drop(AFTER_FORK, len(batch))
        elif len(batch):
            self._stream.add(batch)

    def finish(self, end: RunEnd) -> None:
        """Say how the run ended, once everything before has been sent."""
        if not self._is_orphan():
            self.counts.muted, self.counts.failed = end.muted, end.failed
            self._stream.finish(end)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the server has all runs that are over, or they were given up."""
        return self._is_orphan() or self._sender.flush(timeout)

    def close(self) -> None:
        """Finish the run if nobody has."""
        self.finish(RunEnd(error="The sink was closed before the run ended."))

    # --- what the server has to say ----------------------------------------------------------------

    def open_gates(self) -> frozenset[str]:
        """Watch keys the server wants to see; the first reply of a run is worth a short wait."""
        if not self._is_orphan():
            self._stream.wait_for_answer()
        return self._gates.open

    def breakpoints(self) -> frozenset[str]:
        """Watch keys at which `write` waits."""
        return self._gates.breakpoints

    def replacement(self, tensor_name: str) -> Any:
        """The value that the server put in the place of a tensor, given once; None if it left it alone."""
        return self._replacements.pop(tensor_name, None)

    def _stop_at(self, record: Record) -> None:
        reply = self._stream.ask(record)
        if reply is None or not reply.HasField("tensor"):
            return
        try:
            self._replacements[record.tensor_name] = tensor_from_proto(reply.tensor)
        except ValueError as error:
            notices.warn(
                ("replacement", record.watch_key),
                "The value that the debug server sent for %s cannot be used: %s",
                record.tensor_name,
                error,
            )


def open_grpc_sink(url: DebugUrl, info: RunInfo) -> GrpcSink:
    """The sink of a `grpc://` URL that nobody prepared."""
    return GrpcSink(url, info)


def address_of(url: DebugUrl) -> str:
    """Host and port, as gRPC wants them."""
    return f"[{url.host}]:{url.port}" if ":" in url.host else f"{url.host}:{url.port}"


def _identity() -> tuple[str, int, str]:
    """Host, process, and a name for this program's runs."""
    return _identity_of(os.getpid())


@cache
def _identity_of(process: int) -> tuple[str, int, str]:
    host = socket.gethostname()
    return host, process, f"{host}-{process}-{time.time_ns() // 1_000_000}"
