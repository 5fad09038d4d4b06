"""Work beside the program that leaves it the interpreter.

Python gives a thread that computes the interpreter for five milliseconds at a time, and a training thread lets go of
it with every operation: beside a busy thread, each operation would take that long. So a thread of ours works for a
moment, then sleeps for many, unless somebody is waiting for it.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Politely"]

WORK_SECS = 0.001
REST_SECS = 0.009
LONG_REST_SECS = 0.032
"""The same for what nobody waits for, and where the program has a budget of time."""


class Politely:
    """A block in which this thread, whatever it calls, takes a tenth of the time or less.

    Args:
        hurry: while it is set, the block does not rest.
        rest_secs: how long it rests after each millisecond of work.

    >>> with Politely(threading.Event()):
    ...     sorted([2, 1])
    [1, 2]
    """

    def __init__(self, hurry: threading.Event, rest_secs: float = REST_SECS) -> None:
        self._hurry = hurry
        self._rest_secs = rest_secs
        self._since = 0.0

    def __enter__(self) -> None:
        self._since = time.monotonic()
        sys.setprofile(self._rest_if_due)  # for this thread only; called with every call and return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.setprofile(None)

    def _rest_if_due(self, frame: FrameType, event: str, argument: Any) -> None:
        if time.monotonic() - self._since > WORK_SECS:
            self._hurry.wait(self._rest_secs)
            self._since = time.monotonic()
