"""A thread that is started when there is work, and anew if it died."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Worker"]


class Worker:
    """One daemon thread at a time. Its owner guards it with a lock.

    Args:
        work: what it does, until `is_current` says that it is not wanted any more.
        name: of the thread.

    Attributes:
        deaths: how often a thread was gone without having been dismissed.
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work = work
        self._name = name
        self._thread: threading.Thread | None = None
        self.deaths = 0

    def ensure(self) -> bool:
        """See to it that the thread runs; False if the interpreter shuts down and none can be started."""
        if self._thread is not None:
            if self._thread.is_alive():
                return True
            self.deaths += 1
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            return False
        return True

    @property
    def is_current(self) -> bool:
        """Whether it is the thread itself that asks, and is still wanted."""
        return threading.current_thread() is self._thread

    def dismiss(self) -> None:
        """Want the thread no more; it ends when it asks."""
        self._thread = None
