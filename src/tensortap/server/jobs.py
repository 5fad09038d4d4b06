"""All jobs of a server, and the gates that were asked for in all of them."""

from __future__ import annotations

import threading
from pathlib import Path

from tensortap.server.gates import WatchKey
from tensortap.server.job import Job
from tensortap.server.limits import Limits, checked_name
from tensortap.store.server_root import list_jobs
from tensortap.wire.debug_service import WireError

__all__ = ["Jobs"]


class Jobs:
    """The jobs under a root, in the order they came; safe to use from several threads."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self._root = root
        self._limits = limits
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._everywhere: dict[WatchKey, str] = {}

    def load(self) -> None:
        """Go on with the jobs that an earlier server has left in the root."""
        for name in list_jobs(self._root):
            self._jobs[name] = Job(self._root, name, self._limits)

    def all(self) -> list[Job]:
        """All of them."""
        with self._lock:
            return list(self._jobs.values())

    def named(self, name: str) -> Job:
        """The job of this name, begun if it is new.

        Raises:
            WireError: the name is none, or there are too many jobs.
        """
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                checked_name(name, "job")
                if len(self._jobs) >= self._limits.jobs:
                    raise WireError(f"The server has {self._limits.jobs} jobs already and takes no more.")
                job = self._jobs[name] = Job(self._root, name, self._limits)
                for key, state in self._everywhere.items():
                    job.gates.set([key], state)
            return job

    def set_gate(self, key: WatchKey, state: str, job: str | None) -> None:
        """Open or close a gate of one job, or of all, those to come included."""
        if job is not None:
            self.named(job).set_gates([key], state)
            return
        with self._lock:
            self._everywhere[key] = state
            jobs = list(self._jobs.values())
        for each in jobs:
            each.set_gates([key], state)
