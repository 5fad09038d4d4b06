"""Watching the runs of some threads only."""

from __future__ import annotations

import re
import threading

from tensortap.seam.pattern import check_regex

__all__ = ["ThreadFilter"]


class ThreadFilter:
    """The threads whose runs are watched.

    >>> ThreadFilter("Main").matches(), ThreadFilter("worker").matches(), ThreadFilter(None).matches()
    (True, False, True)
    """

    def __init__(self, regex: str | None) -> None:
        check_regex("thread_name_filter", regex)
        self._regex = re.compile(regex) if regex else None

    def matches(self) -> bool:
        """Whether the current thread is one of them."""
        return self._regex is None or self._regex.match(threading.current_thread().name) is not None
