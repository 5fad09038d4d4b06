"""What all streams of a server share: where runs go, what is counted, and what is allowed."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tensortap.server.chunks import PendingChunks
from tensortap.server.graph_index import GraphIndex
from tensortap.server.handler import GuardedHandler, StreamHandler
from tensortap.server.jobs import Jobs
from tensortap.server.limits import Limits
from tensortap.server.processes import Processes
from tensortap.server.programs import Programs
from tensortap.server.retention import DiskKeeper
from tensortap.server.statistics import Statistics

__all__ = ["Reception"]

log = logging.getLogger(__name__)

_SAID = 10_000
"""Different warnings; whoever causes more of them wants to fill the log."""


class Reception:
    """Everything that streams need of their server.

    Args:
        root: where session directories are made.
        limits: what clients may send.
        new_handler: makes what sees the events of a stream.
        breakpoint_timeout: seconds that a client waits at a breakpoint.
        max_bytes, max_age: of what is kept on disk.

    Attributes:
        instance: by which clients tell this server from one that is started later.
        is_stopping: streams end because the server does.
    """

    def __init__(
        self,
        root: Path,
        limits: Limits,
        new_handler: Callable[[], StreamHandler] = lambda: StreamHandler(None),
        breakpoint_timeout: float = 300.0,
        max_bytes: int | None = None,
        max_age: float | None = None,
    ) -> None:
        self.limits = limits
        self.breakpoint_timeout = breakpoint_timeout
        self.instance = f"{os.getpid()}-{secrets.token_hex(8)}"
        self.is_stopping = False
        self.statistics = Statistics()
        self.jobs = Jobs(root, limits)
        self.programs = Programs(limits)
        self.processes = Processes(self.jobs.named, limits, self.say_once)
        self.graphs = GraphIndex(self.programs)
        self.pending = PendingChunks(limits.pending_bytes)
        self.disk = DiskKeeper(
            self.jobs.all, max_bytes, max_age, lambda number: self.statistics.add(runs_removed=number)
        )
        self._new_handler = new_handler
        self._lock = threading.Lock()
        self._streams = 0
        self._said: set[object] = set()

    @property
    def streams(self) -> int:
        """How many are being served."""
        return self._streams

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """A stream counts as served while it lasts."""
        self.statistics.add(streams=1)
        with self._lock:
            self._streams += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams -= 1

    def wait_for_streams(self, timeout: float) -> None:
        """Wait until none is served any more, or the time is over."""
        deadline = time.monotonic() + timeout
        while self._streams and time.monotonic() < deadline:
            time.sleep(0.01)

    def new_handler(self) -> GuardedHandler:
        """The handler of a stream that begins; one that does nothing if the user's cannot be made."""
        try:
            return GuardedHandler(self._new_handler(), self._failed)
        except Exception:
            self._failed()
            log.exception("The stream handler could not be made; the stream is only written.")
            return GuardedHandler(StreamHandler(None), self._failed)

    def _failed(self) -> None:
        self.statistics.add(failures=1)

    def say_once(self, key: object, message: str, *arguments: object) -> None:
        """Log a warning, the first time only."""
        if key not in self._said and len(self._said) < _SAID:
            self._said.add(key)
            log.warning(message, *arguments)
