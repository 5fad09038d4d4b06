"""One thread per process that does the writing, behind a queue bounded in bytes."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from tensortap.sink.room import Room
from tensortap.sink.worker import Worker

__all__ = ["DEFAULT_MAX_BYTES", "DEFAULT_MAX_WAIT_SECS", "WriterQueue", "shared_queue"]

log = logging.getLogger("tensortap.sink")

DEFAULT_MAX_BYTES = 256 << 20
"""Enough for a burst of a large model's values, little enough to stand beside the training in memory."""

DEFAULT_MAX_WAIT_SECS = 5.0
"""A slow disk catches up in this time; one that does not is broken."""

FORK_SECS = 0.5
"""The longest that a fork waits for the thread to be between two jobs."""

DRAIN_AT_EXIT_SECS = 60.0
"""How long the end of the program waits for the last records."""


class WriterQueue:
    """Executes jobs in order, on a thread of its own that starts with the first job.

    Args:
        max_bytes: jobs are accepted while their sizes add up to at most this. A larger job is accepted when
            the queue is empty, as it could never be otherwise.
        name: of the thread.

    >>> queue, done = WriterQueue(), []
    >>> queue.submit(lambda: done.append(1), nbytes=10)
    True
    >>> queue.drain(), done
    (True, [1])
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES, name: str = "tensortap-writer") -> None:
        self.max_bytes = max_bytes
        self.name = name
        self.faults = 0
        """Jobs that raised, and threads that died."""
        self._reset()
        _queues.add(self)

    def _reset(self) -> None:
        self._abandoned = False
        self._jobs: deque[tuple[Callable[[], None], int]] = deque()
        self._later: deque[tuple[float, Callable[[], None]]] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._room = Room(self.max_bytes)
        self._busy = False
        self._worker = Worker(self._work, self.name)

    @property
    def pending_bytes(self) -> int:
        """Size of the jobs that are not done."""
        return self._room.used_bytes

    def submit(
        self, job: Callable[[], None], nbytes: int = 0, max_wait_secs: float = DEFAULT_MAX_WAIT_SECS
    ) -> bool:
        """Have `job` executed; False if the queue is full and stays so.

        Args:
            job: what to do; an exception it raises is logged.
            nbytes: how much memory waits with it; a job of size 0 is always accepted.
            max_wait_secs: how long a full queue may hold the caller up.
        """
        with self._changed:
            if not self._room.fits(nbytes):
                self._ensure_thread()
            if not self._room.wait_for(nbytes, self._changed, max_wait_secs):
                return False
            self._jobs.append((job, nbytes))
            self._room.take(nbytes)
            self._ensure_thread()
            self._changed.notify_all()
        return True

    def call_later(self, delay_secs: float, job: Callable[[], None]) -> None:
        """Queue a small job after a delay, which should be the same for all such jobs."""
        with self._changed:
            self._later.append((time.monotonic() + delay_secs, job))
            self._ensure_thread()
            if len(self._later) == 1:
                self._changed.notify_all()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all jobs are done; False if the timeout passed first."""
        if self._worker.is_current:
            return False  # a job that waits for itself
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (self._jobs or self._busy) and not self._abandoned:
                if not self._ensure_thread():
                    self._do_all_here()
                    return True
                # Woken now and then to notice a thread that died without a word.
                left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def abandon(self) -> None:
        """Do nothing more, and let nobody wait: what has not been written stays so."""
        self._abandoned = True
        with self._changed:
            self._jobs.clear()
            self._later.clear()
            self._changed.notify_all()

    def pause_for_fork(self, deadline: float) -> bool:
        """Hold the lock while nothing is being done; False if that does not come about in time.

        What a thread is in the middle of stays so in a forked child for good: a module that is being imported, say.
        """
        if not self._changed.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        while self._busy and time.monotonic() < deadline:
            self._changed.wait(0.01)
        return True

    def resume_after_fork(self) -> None:
        """Let the lock go."""
        self._changed.release()

    def _ensure_thread(self) -> bool:
        """Start the thread, or another one if it died; False if no thread can be started any more."""
        deaths = self._worker.deaths
        runs = self._worker.ensure()
        if self._worker.deaths > deaths:
            self.faults += 1
            self._busy = False
            log.warning("The writer thread died; a new one takes over.")
        return runs

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait(self._secs_until_later())
                    self._take_what_is_due()
                    if not self._worker.is_current:
                        return
                self._take_what_is_due()
                job, nbytes = self._jobs.popleft()
                self._busy = True
            try:
                self._do(job)
            finally:
                del job  # what it holds must not live on until the next one comes
                with self._changed:
                    self._busy = False
                    self._room.give_back(nbytes)
                    self._changed.notify_all()

    def _secs_until_later(self) -> float | None:
        return max(0.0, self._later[0][0] - time.monotonic()) if self._later else None

    def _take_what_is_due(self) -> None:
        while self._later and self._later[0][0] <= time.monotonic():
            self._jobs.append((self._later.popleft()[1], 0))

    def _do_all_here(self) -> None:
        while self._jobs:
            job, nbytes = self._jobs.popleft()
            self._do(job)
            self._room.give_back(nbytes)

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:
            self.faults += 1
            log.exception("Writing records failed; training is not affected.")


_queues: weakref.WeakSet[WriterQueue] = weakref.WeakSet()
_shared: WriterQueue | None = None
_shared_lock = threading.Lock()


def shared_queue() -> WriterQueue:
    """The queue of this process.

    >>> shared_queue() is shared_queue()
    True
    """
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = WriterQueue()
            atexit.register(_drain_at_exit, _shared)
        return _shared


def _drain_at_exit(queue: WriterQueue) -> None:
    if not queue.drain(DRAIN_AT_EXIT_SECS):
        log.error(
            "The program ends with %d bytes of records unwritten: the disk did not take them in %g s.",
            queue.pending_bytes,
            DRAIN_AT_EXIT_SECS,
        )


_paused: list[WriterQueue] = []


def _before_fork() -> None:
    deadline = time.monotonic() + FORK_SECS
    _paused.extend(queue for queue in list(_queues) if queue.pause_for_fork(deadline))


def _go_on() -> None:
    while _paused:
        _paused.pop().resume_after_fork()


def _begin_child() -> None:
    """After a fork: the thread stayed with the parent, and so did the duty to write what was queued."""
    global _shared_lock
    _paused.clear()
    _shared_lock = threading.Lock()
    for queue in list(_queues):
        queue._reset()


os.register_at_fork(before=_before_fork, after_in_parent=_go_on, after_in_child=_begin_child)
