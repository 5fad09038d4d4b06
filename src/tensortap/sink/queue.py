"""One thread per process that does the writing, behind a queue bounded in bytes.

Training waits for a full queue only so long: `max_wait_secs` from the moment it filled up. If the writer has
not moved by then the queue counts as stalled, everything is refused at once, and waiting begins anew only
after the writer has finished something. A dead disk therefore costs a training run seconds, once.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

__all__ = ["DEFAULT_MAX_BYTES", "DEFAULT_MAX_WAIT_SECS", "WriterQueue", "shared_queue"]

log = logging.getLogger("tensortap.sink")

DEFAULT_MAX_BYTES = 256 << 20
"""Enough for a burst of a large model's values, little enough to stand beside the training in memory."""

DEFAULT_MAX_WAIT_SECS = 5.0
"""A slow disk catches up in this time; one that does not is broken."""

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
        self._bytes = 0
        self._busy = False
        self._stalled = False
        self._thread: threading.Thread | None = None

    @property
    def pending_bytes(self) -> int:
        """Size of the jobs that are not done."""
        return self._bytes

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
            if not self._has_room(nbytes) and (
                self._stalled or not self._wait_for_room(nbytes, max_wait_secs)
            ):
                self._stalled = True
                return False
            self._jobs.append((job, nbytes))
            self._bytes += nbytes
            self._ensure_thread()
            self._changed.notify_all()
        return True

    def _wait_for_room(self, nbytes: int, max_wait_secs: float) -> bool:
        self._ensure_thread()
        return self._changed.wait_for(lambda: self._has_room(nbytes), max_wait_secs)

    def _has_room(self, nbytes: int) -> bool:
        return not nbytes or not self._bytes or self._bytes + nbytes <= self.max_bytes

    def call_later(self, delay_secs: float, job: Callable[[], None]) -> None:
        """Queue a small job after a delay, which should be the same for all such jobs."""
        with self._changed:
            self._later.append((time.monotonic() + delay_secs, job))
            self._ensure_thread()
            if len(self._later) == 1:
                self._changed.notify_all()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all jobs are done; False if the timeout passed first."""
        if threading.current_thread() is self._thread:
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

    def _ensure_thread(self) -> bool:
        """Start the thread, or another one if it died; False if no thread can be started any more."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            return True
        if thread is not None:
            self.faults += 1
            self._busy = False
            log.warning("The writer thread died; a new one takes over.")
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is shutting down
            self._thread = None
            return False
        return True

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait(self._secs_until_later())
                    self._take_what_is_due()
                    if self._thread is not me:
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
                    self._stalled = False
                    self._bytes -= nbytes
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
            self._bytes -= nbytes

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


def _begin_child() -> None:
    """After a fork: the thread stayed with the parent, and so did the duty to write what was queued."""
    global _shared_lock
    _shared_lock = threading.Lock()
    for queue in list(_queues):
        queue._reset()


os.register_at_fork(after_in_child=_begin_child)
