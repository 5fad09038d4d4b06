"""A job at the server: its session directory, its gates and alerts, and what its runs share."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensortap.reader import SessionDir
from tensortap.records import Circumstances, RunInfo
from tensortap.server.alerts import AlertRegistry
from tensortap.server.gates import CLOSED, Gates, WatchKey
from tensortap.server.limits import Limits
from tensortap.store.server_root import job_directory, read_job_facts, write_job_facts
from tensortap.store.writer import RunWriter, SessionStore

__all__ = ["DEFAULT_JOB", "Job"]

DEFAULT_JOB = "default"
"""Where runs go whose client does not say to which job they belong."""

_EXECUTORS = 256
"""Combinations of fetches and feeds whose graphs are remembered."""

_DEBUG_NODE = "__dbg_"

log = logging.getLogger(__name__)


class Job:
    """One job. Its session directory is made when its first run comes.

    Attributes:
        name: as its clients call it.
        directory: the session directory.
        latest_run: number of the newest run that any of its clients announced.
    """

    def __init__(self, root: Path, name: str, limits: Limits) -> None:
        self.name = name
        self.directory = job_directory(root, name)
        self.limits = limits
        self.latest_run = -1
        saved = read_job_facts(self.directory)
        self.gates = _restored_gates(saved, limits.gates)
        self.alerts = _restored_alerts(saved)
        self._gated: dict[WatchKey, None] = {}
        self._lock = threading.Lock()
        self._store: SessionStore | None = None
        self._session: SessionDir | None = None
        self._open_runs: set[Path] = set()
        self._graphs: OrderedDict[object, dict[str, str]] = OrderedDict()
        self._written: tuple[int, int] | None = None
        self._said_incomplete = False

    is_live = True

    @property
    def id(self) -> str:
        """What it is called in addresses."""
        return self.directory.name

    def session(self) -> SessionDir:
        """What was received so far, to read.

        Raises:
            OSError: nothing was.
        """
        session = self._session
        if session is None:
            session = self._session = SessionDir(self.directory)
        else:
            session.refresh()
        return session

    @property
    def is_known(self) -> bool:
        """Whether anything was received of it, or asked about it."""
        return self._store is not None or self.directory.is_dir()

    @property
    def store(self) -> SessionStore:
        """Writes the session directory."""
        with self._lock:
            if self._store is None:
                self._store = SessionStore(self.directory)
                self._save()
            return self._store

    # --- runs --------------------------------------------------------------------------------------

    def new_run(self, info: RunInfo) -> RunWriter:
        """Begin a run; one without a number of its own gets that of the newest run of the job."""
        index = info.index if info.index >= 0 else max(self.latest_run, 0)
        self.latest_run = max(self.latest_run, index)
        writer = self.store.new_run(replace(info, index=index, task=min(max(info.task, 0), 10**9 - 1)))
        with self._lock:
            self._open_runs.add(writer.path)
        return writer

    def end_run(
        self,
        writer: RunWriter,
        counts: Mapping[str, int],
        error: str | None,
        circumstances: Circumstances | None = None,
    ) -> None:
        """Complete a run; what cannot be written is logged, the server goes on."""
        try:
            writer.finish({}, counts, error, circumstances=circumstances)
        except OSError as problem:
            if not self._said_incomplete:
                self._said_incomplete = True
                log.warning(
                    "The run %s, and perhaps later ones, could not be completed: %s", writer.path, problem
                )
            writer.close()
        with self._lock:
            self._open_runs.discard(writer.path)
        self.save()

    def is_open(self, run_dir: Path) -> bool:
        """Whether the run is being received."""
        with self._lock:
            return run_dir in self._open_runs

    @property
    def open_runs(self) -> int:
        """How many runs are being received."""
        return len(self._open_runs)

    # --- graphs ------------------------------------------------------------------------------------

    def remember_graphs(self, executor: object, graphs: dict[str, str]) -> None:
        """Keep the digests of an executor's graphs: only its first run sends them (F6)."""
        with self._lock:
            self._graphs[executor] = {**self._graphs.get(executor, {}), **graphs}
            self._graphs.move_to_end(executor)
            while len(self._graphs) > _EXECUTORS:
                self._graphs.popitem(last=False)

    def graphs_of(self, executor: object) -> dict[str, str]:
        """The digests of an executor's graphs, by device."""
        with self._lock:
            return dict(self._graphs.get(executor, {}))

    # --- gates -------------------------------------------------------------------------------------

    def set_gates(self, keys: list[WatchKey], state: str) -> None:
        """Open or close gates; remembered over a restart, because clients remember them too."""
        self.gates.set(keys, state)
        self.save()

    def note_gated(self, graph: Any) -> None:
        """Look for gated debug ops in a graph, named `__dbg_<node>:<slot>_<i>_<op>` (E9)."""
        for node in graph.node:
            if node.name.startswith(_DEBUG_NODE) and node.attr["gated_grpc"].b:
                tensor, _, _ = node.name.removeprefix(_DEBUG_NODE).rsplit("_", 2)
                with contextlib.suppress(ValueError):
                    key = WatchKey.parse(f"{tensor}:{node.op}")
                    if len(self._gated) < self.limits.gates:
                        self._gated[key] = None

    def gated(self) -> list[WatchKey]:
        """The gated watches of all graphs received so far (F20)."""
        return sorted(self._gated.copy())

    def save(self) -> None:
        """Write down what must survive a restart."""
        with self._lock:
            if self._store is not None:
                self._save()

    def make(self) -> None:
        """Make the session directory now."""
        _ = self.store

    def _save(self) -> None:
        versions = self.gates.version, self.alerts.version
        if versions == self._written:
            return
        facts = {
            "job": self.name,
            "gates": {str(key): state for key, state in self.gates.states().items()},
            "alerts": self.alerts.saved(),
        }
        try:
            write_job_facts(self.directory, facts)
            self._written = versions
        except OSError as error:
            log.warning("The gates and alerts of job %s could not be written: %s", self.name, error)

    def close(self) -> None:
        """Let every waiting client go on, and close the files."""
        self.gates.release_all()
        self.save()
        if self._store is not None:
            self._store.close()


def _restored_gates(saved: Mapping[str, Any], limit: int) -> Gates:
    try:
        return Gates(limit, saved.get("gates", {}))
    except (TypeError, ValueError, KeyError, AttributeError):
        log.warning("The saved gates of a job are damaged; all are %s.", CLOSED)
        return Gates(limit)


def _restored_alerts(saved: Mapping[str, Any]) -> AlertRegistry:
    try:
        return AlertRegistry(saved.get("alerts", []))
    except (TypeError, ValueError):
        log.warning("The saved alerts of a job are damaged; they begin anew.")
        return AlertRegistry()
