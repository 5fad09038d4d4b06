"""Looking at what a program does to its parameters while it runs, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tensortap.launch.polite import LONG_REST_SECS, Politely
from tensortap.records import Update
from tensortap.sink.base import log
from tensortap.store.updates import UpdateLog

__all__ = ["Checking"]

FIRST_LOOKS = (3, 5, 8, 11)
"""After so many updates; then after every third. Engines tell of ever fewer."""

LATER = 3


class Checking:
    """Writes updates, and has somebody look at the session after some of them.

    Args:
        updates: where they are written.
        look: called in a thread of its own, one call at a time, for a hundredth of the time.
    """

    def __init__(self, updates: UpdateLog, look: Callable[[], None]) -> None:
        self._updates = updates
        self._look = look
        self._due = threading.Event()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._next = FIRST_LOOKS[0]

    def add(self, update: Update) -> None:
        """Take an update."""
        self._updates.add(update)
        if self._updates.written >= self._next and not self._ends.is_set():
            self._next = next((each for each in FIRST_LOOKS if each > self._updates.written), 0) or (
                self._updates.written + LATER
            )
            self._due.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tensortap-checks", daemon=True)
                self._thread.start()

    def close(self, timeout: float = 5.0) -> None:
        """No more updates. A look that has begun is hurried, and waited for."""
        self._ends.set()
        self._due.set()
        if self._thread is not None:
            self._thread.join(timeout)
        self._updates.close()

    def _work(self) -> None:
        while not self._ends.is_set():
            self._due.wait()
            self._due.clear()
            if self._ends.is_set():
                return
            try:
                with Politely(self._ends, LONG_REST_SECS):
                    self._look()
            except Exception:
                log.warning("tensortap could not check the program", exc_info=True)
