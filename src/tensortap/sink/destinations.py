"""From a debug URL to the sink of one run.

A debug session or hook that has more to say than a URL can carry (budget, retention, the printed fetches, how to
stream) gives a `Destination`, which opens its sinks itself. Nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable

from tensortap.records import RunInfo
from tensortap.sink.base import Sink
from tensortap.sink.file import open_file_sink
from tensortap.sink.memory import open_memory_sink
from tensortap.watch.urls import Destination, parse_debug_url

__all__ = ["OpenSink", "open_sink"]

OpenSink = Callable[[str, RunInfo], Sink]


def open_sink(url: str, info: RunInfo) -> Sink:
    """The sink of a URL, for one run.

    Raises:
        ValueError: not a debug URL.
        FailedPreconditionError: nobody listens to a `memcbk` key.

    >>> from tensortap.sink.memory import MemorySink, collect
    >>> with collect("seen"):
    ...     type(open_sink("memcbk:///seen", RunInfo(0, 0, 0))).__name__
    'MemorySink'
    >>> heard = []
    >>> there = Destination("file:///tmp/run_1_0", lambda info: MemorySink(info, heard))
    >>> type(open_sink(there, RunInfo(0, 0, 0))).__name__
    'MemorySink'
    """
    if isinstance(url, Destination):
        sink: Sink = url.open_sink(info)
        return sink
    parsed = parse_debug_url(url)
    if parsed.scheme == "file":
        return open_file_sink(parsed.path, info)
    if parsed.scheme == "memcbk":
        return open_memory_sink(parsed.path, info)
    from tensortap.sink.grpc import open_grpc_sink  # gRPC is imported by programs that use it

    return open_grpc_sink(parsed, info)
