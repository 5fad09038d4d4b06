"""How much the server keeps on disk: runs by bytes and by age, the oldest go first."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tensortap.errors import UsageError
from tensortap.server.job import Job
from tensortap.store.session import list_runs, remove_run, run_size

__all__ = ["DiskKeeper"]

SWEEP_SECS = 30.0
_PAUSE_SECS = 1.0
"""After a sweep that made no room, before it is worth another one."""
_TARGET = 0.9
"""How full the disk may still be after runs were deleted, so that not every run deletes one."""

log = logging.getLogger(__name__)


class DiskKeeper:
    """Deletes finished runs that are too old or too many, and says whether there is room for more.

    Runs that are being received are never deleted. If they alone take all the room, their records are dropped.
    Graphs, source files and health histories stay: they are what remains known of runs that are gone.

    Args:
        jobs: all jobs of the server.
        max_bytes: of all run directories together; None for no limit.
        max_age: seconds since the start of a run; None for no limit.
        removed: called with the number of runs that were deleted.
    """

    def __init__(
        self,
        jobs: Callable[[], Iterable[Job]],
        max_bytes: int | None = None,
        max_age: float | None = None,
        removed: Callable[[int], None] = lambda number: None,
    ) -> None:
        if max_bytes is not None and max_bytes <= 0:
            raise UsageError(f"max_bytes must be positive, got {max_bytes}.")
        if max_age is not None and max_age <= 0:
            raise UsageError(f"max_age must be positive, got {max_age}.")
        self._jobs = jobs
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._removed = removed
        self._lock = threading.Lock()
        self._sweeping = threading.Lock()
        self._used = 0
        self._full_until = float("-inf")
        self._sizes: dict[Path, int] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def used(self) -> int:
        """Bytes of all runs, as far as they were counted."""
        return self._used

    def start(self) -> None:
        """Look now and then every half minute, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="tensortap-retention", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def has_room(self, nbytes: int) -> bool:
        """Whether so many more bytes may be written; they then count as used."""
        if self._fits(nbytes):
            return True
        if time.monotonic() < self._full_until:
            return False
        self.sweep()
        if self._fits(nbytes):
            return True
        self._full_until = time.monotonic() + _PAUSE_SECS
        return False

    def _fits(self, nbytes: int) -> bool:
        with self._lock:
            if self._max_bytes is not None and self._used + nbytes > self._max_bytes:
                return False
            self._used += nbytes
            return True

    def sweep(self, now: float | None = None) -> int:
        """Count all runs and delete those that are too old or too many; how many that were."""
        with self._sweeping:
            runs = self._runs()
            used = sum(size for _, size, _, _ in runs)
            oldest = (time.time() if now is None else now) - (self._max_age or float("inf"))
            most = float("inf")
            if self._max_bytes is not None and used > _TARGET * self._max_bytes:
                most = _TARGET * self._max_bytes
            number = 0
            for timestamp, size, path, is_open in runs:
                if not is_open and (timestamp / 1e6 < oldest or used > most):
                    remove_run(path)
                    self._sizes.pop(path, None)
                    used -= size
                    number += 1
            with self._lock:
                self._used = used
        if number:
            self._removed(number)
            log.info("Retention deleted %d run(s).", number)
        return number

    def _runs(self) -> list[tuple[int, int, Path, bool]]:
        """Start, size, path and whether it is being received, of every run; oldest first."""
        found = []
        for job in self._jobs():
            if not job.directory.is_dir():
                continue
            for name, timestamp, _ in list_runs(job.directory)[0]:
                path = job.directory / name
                is_open = job.is_open(path)
                size = self._sizes.get(path)
                if size is None:
                    size = run_size(path)
                    if not is_open:
                        self._sizes[path] = size
                found.append((timestamp, size, path, is_open))
        return sorted(found)

    def _run(self) -> None:
        while True:
            try:
                self.sweep()
            except Exception:
                log.exception("Retention failed; it will be tried again.")
            if self._stopped.wait(SWEEP_SECS):
                return
