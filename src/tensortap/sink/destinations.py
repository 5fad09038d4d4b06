"""From a debug URL to the sink of one run.

A debug session or hook that has more to say than a URL can carry (budget, retention, the printed fetches)
*prepares* the URL of a run: whoever opens that URL gets the sink it has in mind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tensortap.records import RunInfo
from tensortap.sink.base import Sink
from tensortap.sink.file import open_file_sink
from tensortap.sink.memory import open_memory_sink
from tensortap.watch.urls import parse_debug_url

__all__ = ["OpenSink", "forget", "open_sink", "prepare"]

OpenSink = Callable[[str, RunInfo], Sink]

_prepared: dict[str, Callable[[RunInfo], Sink]] = {}
_lock = threading.Lock()


def open_sink(url: str, info: RunInfo) -> Sink:
    """The sink of a URL, for one run.

    Raises:
        ValueError: not a debug URL.
        FailedPreconditionError: nobody listens to a `memcbk` key.

    >>> from tensortap.sink.memory import collect
    >>> with collect("seen"):
    ...     type(open_sink("memcbk:///seen", RunInfo(0, 0, 0))).__name__
    'MemorySink'
    """
    parsed = parse_debug_url(url)
    with _lock:
        opener = _prepared.get(str(parsed))
    if opener is not None:
        return opener(info)
    if parsed.scheme == "file":
        return open_file_sink(parsed.path, info)
    if parsed.scheme == "memcbk":
        return open_memory_sink(parsed.path, info)
    from tensortap.sink.grpc import open_grpc_sink  # gRPC is imported by programs that use it

    return open_grpc_sink(parsed, info)


def prepare(url: str, opener: Callable[[RunInfo], Sink]) -> None:
    """Have `opener(info)` make the sink whenever `url` is opened, until `forget(url)`.

    >>> from tensortap.sink.memory import MemorySink
    >>> prepare("file:///tmp/run_1_0", lambda info: MemorySink(info, []))
    >>> type(open_sink("FILE:///tmp/run_1_0", RunInfo(0, 0, 0))).__name__
    'MemorySink'
    >>> forget("file:///tmp/run_1_0")
    """
    key = str(parse_debug_url(url))
    with _lock:
        _prepared[key] = opener


def forget(url: str) -> None:
    """Take back what was prepared for a URL, if anything was."""
    key = str(parse_debug_url(url))
    with _lock:
        _prepared.pop(key, None)
