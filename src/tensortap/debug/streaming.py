"""What the hooks and wrapper sessions that stream to debug servers share."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from tensortap.debug.root import Launch
from tensortap.records import Frame, RunInfo
from tensortap.seam.structure import leaves
from tensortap.sink.base import notices
from tensortap.sink.grpc import GrpcSink, address_of
from tensortap.sink.stream.sender import Sender
from tensortap.sink.stream.senders import sender_of
from tensortap.sink.stream_options import StreamOptions
from tensortap.store.processes import ProcessFacts, facts_as_text
from tensortap.watch.options import WatchOptions
from tensortap.watch.urls import DebugUrl, Destination, parse_debug_url
from tensortap.wire.debug_service import SEND_PROCESS, SEND_SOURCE_FILES, SEND_TRACEBACKS
from tensortap.wire.tracebacks import call_traceback, run_key, source_file

__all__ = ["Streamer", "gated_watch", "grpc_urls"]

_PREFIX = "grpc://"

TELL_SECS = 2.0
"""How often a server is told where this process is."""


def grpc_urls(addresses: Any) -> list[str]:
    """The URLs of one debug server or several.

    Args:
        addresses: `host:port[/path]` as text, or a list of such, with or without `grpc://`.

    Raises:
        TypeError: neither text nor a list of text.
        ValueError: no address at all, or one without a port.

    >>> grpc_urls(["localhost:7000", "grpc://10.0.0.2:8000"])
    ['grpc://localhost:7000', 'grpc://10.0.0.2:8000']
    """
    if isinstance(addresses, str):
        addresses = [addresses]
    elif not isinstance(addresses, list | tuple):
        raise TypeError(
            "Expected type str or list in grpc_debug_server_addresses, "
            f"received type {type(addresses).__name__}: {addresses!r}."
        )
    for address in addresses:
        if not isinstance(address, str):
            raise TypeError(
                "Expected type str in list grpc_debug_server_addresses, "
                f"received type {type(address).__name__}: {address!r}."
            )
    if not addresses:
        raise ValueError("grpc_debug_server_addresses is empty: name at least one server, as host:port.")
    urls = [each if "://" in each else _PREFIX + each for each in addresses]
    parsed = [parse_debug_url(url) for url in urls]
    for each, url in zip(parsed, urls, strict=True):
        if each.scheme != "grpc":
            raise ValueError(f"{url!r} is no address of a debug server: write host:port or grpc://host:port.")
    return list(dict.fromkeys(map(str, parsed)))


def gated_watch(fetches: Any, feeds: Any) -> WatchOptions:
    """Every tensor, published while the server asks for it; what the TensorBoard variants watch."""
    return WatchOptions("DebugIdentity(gated_grpc=true)")


class Streamer:
    """Streams the runs of one debug session or hook.

    Args:
        addresses: of the servers, see `grpc_urls`.
        options: how to stream.
        sends_program: send the source lines of nodes, and the source files, whenever the graph has grown.

    Attributes:
        urls: where runs go.
    """

    def __init__(self, addresses: Any, options: StreamOptions | None, sends_program: bool) -> None:
        if options is not None and not isinstance(options, StreamOptions):
            raise TypeError(f"stream= takes a tensortap StreamOptions(...), got {options!r}.")
        self._options = options or StreamOptions()
        self._sends_program = sends_program
        self._graph_version = -1
        launch = Launch.of(os.environ)
        self._session = self._options.job or ("" if launch is None else f"launch-{launch.digest}")
        self._told = (0.0, "")
        self.urls = [Destination(url, self._opener(parse_debug_url(url))) for url in grpc_urls(addresses)]
        self._addresses = [address_of(parse_debug_url(url)) for url in self.urls]
        self._senders: list[Sender] = []
        # Held from here on, senders end after whoever is told later than this that the program ends: such a one may
        # still have a run open.
        self.senders()

    def _opener(self, url: DebugUrl) -> Callable[[RunInfo], GrpcSink]:
        return lambda info: GrpcSink(url, info, self._options, self._session)

    def senders(self) -> list[Sender]:
        """What sends, one for each server; in a forked process, others than before."""
        self._senders = [sender_of(each, self._options) for each in dict.fromkeys(self._addresses)]
        return self._senders

    def urls_for_run(self) -> list[str]:
        """Where the coming run goes: the servers that are not down. Watching for the others would be for nothing."""
        if self._options.spool_dir is not None:
            return list(self.urls)
        down = [sender for sender in self.senders() if sender.is_down]
        for sender in down:
            sender.skip_run()
        left_alone = {sender.address for sender in down}
        return [
            url for url, address in zip(self.urls, self._addresses, strict=True) if address not in left_alone
        ]

    def send_program(self, session: Any, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> None:
        """Send source lines and files if the graph has grown; never raises."""
        if not self._sends_program:
            return
        try:
            graph = session.graph
            if graph.version == self._graph_version:
                return
            self._graph_version = graph.version
            key = run_key(
                map(_name, feed_dict or ()), (_name(each) for each in leaves(fetches) if each is not None)
            )
            origin, nodes, version = _user_stack(), graph.nodes, graph.version
        except Exception as error:
            notices.warn(("program", type(error)), "The source lines of the run cannot be sent: %r", error)
            return

        def messages() -> Iterator[tuple[str, bytes]]:
            yield SEND_TRACEBACKS, call_traceback(key, origin, nodes, version).SerializeToString()
            frames = (*origin, *(frame for node in nodes for frame in node.stack))
            for path in dict.fromkeys(frame.file for frame in frames):
                file = source_file(path)
                if file is not None:
                    yield SEND_SOURCE_FILES, file.SerializeToString()

        for sender in self.senders():
            sender.call(messages)

    def send_process(self, facts: ProcessFacts) -> None:
        """Say what becomes of a process that trains: now and then, and when that changes; never raises."""
        last, state = self._told
        if not facts.seen_runs and facts.world < 2:
            return
        if facts.state == state and facts.seen - last < TELL_SECS:
            return
        self._told = facts.seen, facts.state
        text = facts_as_text(replace(facts, beat=TELL_SECS))
        for url, address in zip(self.urls, self._addresses, strict=True):
            job = parse_debug_url(url).path.strip("/") or self._session
            sender = sender_of(address, self._options)
            if job and not sender.is_down:
                message = f'{{"job": {json.dumps(job)}, "facts": {text}}}'.encode()
                sender.call(lambda message=message: [(SEND_PROCESS, message)])  # type: ignore[misc]

    def outcomes(self) -> list[str]:
        """What became of the records, one sentence for each server."""
        return [str(sender.outcome()) for sender in self.senders()]

    def final_outcomes(self) -> list[str]:
        """The same when the program is over: what has not arrived by now is given up; nobody says it again."""
        return [str(sender.final_outcome()) for sender in self.senders()]

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the servers have all runs so far; False if the timeout, in seconds, passed first."""
        limit = self._options.flush_secs if timeout is None else timeout
        deadline = time.monotonic() + limit
        arrived = [sender.flush(max(0.0, deadline - time.monotonic())) for sender in self.senders()]
        return all(arrived)

    def close(self, says_outcome: bool = True) -> None:
        """Wait for the last records, and say what became of them; harmless when called again."""
        deadline = time.monotonic() + self._options.flush_secs
        for sender in self.senders():
            sender.flush_last(max(0.0, deadline - time.monotonic()))
        for sender in self.senders() if says_outcome else ():
            sender.report()


def _name(item: Any) -> str:
    return item if isinstance(item, str) else str(getattr(item, "name", item))


def _user_stack() -> list[Frame]:
    """The user's lines that led here, outermost first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not _is_library(code.co_filename):
            frames.append(Frame(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return frames[::-1]


@cache
def _is_library(path: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to us."""
    return path.startswith(_LIBRARIES) or path.startswith("<")


_LIBRARIES = (
    str(Path(__file__).parents[1]) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
