"""Recorded directories as the HTTP interface sees jobs: to be looked at, with nothing that could be told to wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.errors import UsageError
from tensortap.extras import require
from tensortap.reader import SessionDir
from tensortap.reader.single_run import open_session
from tensortap.server.alerts import AlertRegistry
from tensortap.server.gates import Gates, WatchKey
from tensortap.server.statistics import Statistics, resident_bytes

if TYPE_CHECKING:
    from tensortap.server.http import HttpServer

__all__ = ["RecordedJob", "Viewer"]


class RecordedJob:
    """One directory. It may still be growing."""

    is_known = True
    is_live = False
    open_runs = 0

    def __init__(self, directory: Path, number: int = 0) -> None:
        self.directory = directory.absolute()
        self.name = self.directory.name or str(self.directory)
        self.id = f"{self.name}-{number + 1}" if number else self.name
        self.gates = Gates(0)
        self.alerts = AlertRegistry()
        self._session: SessionDir | None = None

    def session(self) -> SessionDir:
        """What there is in it."""
        session = self._session
        if session is None or not session.runs:
            session = self._session = open_session(self.directory)
        else:
            session.refresh()
        return session

    def gated(self) -> list[WatchKey]:
        """Nobody listens."""
        return []

    def set_gates(self, keys: list[WatchKey], state: str) -> None:
        """Refused: nobody listens."""
        raise UsageError(
            f"{self.name} is a recorded directory; gates and breakpoints are for jobs that stream to `tensortap serve`."
        )

    def make(self) -> None:
        """It is there."""

    def save(self) -> None:
        """Nothing is remembered."""


class Viewer:
    """The HTTP interface and the page over recorded directories.

    Args:
        directories: sessions, or single runs, in our layout or in tfdbg's.
        port: 0 takes a free one.

    Raises:
        MissingExtraError: what the HTTP interface needs is not installed.
        OSError: the port is taken.
    """

    host = "127.0.0.1"
    token = None

    def __init__(self, directories: Sequence[Path], *, port: int = 0) -> None:
        require("view", "`tensortap view`")
        from tensortap.server.http import HttpServer

        names: dict[str, int] = {}
        self._jobs: list[RecordedJob] = []
        for path in directories:
            name = path.absolute().name
            self._jobs.append(RecordedJob(path, names.get(name, 0)))
            names[name] = names.get(name, 0) + 1
        self.statistics = Statistics()
        self._stopped = threading.Event()
        self._http: HttpServer = HttpServer(self, self.host, port, None, None)

    def jobs(self) -> list[RecordedJob]:
        """The directories."""
        return self._jobs

    def job(self, name: str) -> RecordedJob:
        """Refused: directories are named when the viewer starts."""
        raise UsageError(f"There is no directory {name[:80]!r} here.")

    def describe(self) -> dict[str, Any]:
        """What is said of this process."""
        return {
            "version": version("tensortap"),
            "is_live": False,
            "started": self.statistics.started,
            "now": self.gauges(),
        }

    def gauges(self) -> dict[str, float]:
        """What is the case now."""
        return {"jobs": len(self._jobs), "resident_memory_bytes": resident_bytes()}

    @property
    def http_address(self) -> str:
        """Where the page is."""
        return f"http://{self.host}:{self._http.port}"

    def start(self) -> Viewer:
        """Begin to serve."""
        self._http.start()
        self._http.look_ahead()
        return self

    def stop(self) -> None:
        """End the thread; harmless when called again."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._http.stop()

    def __enter__(self) -> Viewer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
