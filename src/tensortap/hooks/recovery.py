"""How often and how quickly a preempted session is made anew."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tensortap.errors import AbortedError, UnavailableError

__all__ = ["PREEMPTION_ERRORS", "RecoveryPolicy"]

_log = logging.getLogger("tensortap.hooks")

PREEMPTION_ERRORS = (AbortedError, UnavailableError)

MAX_BACKOFF_SECS = 30.0
"""A preempted peer is usually back within a minute; waiting longer would waste its return."""

sleep: Callable[[float], None] = time.sleep
"""Replaceable, so that tests do not wait; `time.sleep` is interrupted by Ctrl-C."""


class RecoveryPolicy:
    """Counts recoveries without progress: the first is immediate, later ones wait longer and longer.

    Args:
        max_recoveries: give up after this many in a row; None never gives up, 0 does not recover at all.
        backoff_secs: wait before the second recovery; doubles with each further one, up to 30 s.
    """

    def __init__(self, max_recoveries: int | None, backoff_secs: float) -> None:
        if max_recoveries is not None and max_recoveries < 0:
            raise ValueError(f"max_recoveries must not be negative, got {max_recoveries}.")
        if backoff_secs < 0:
            raise ValueError(f"recovery_backoff_secs must not be negative, got {backoff_secs}.")
        self._max = max_recoveries
        self._backoff_secs = backoff_secs
        self._in_a_row = 0

    def progress(self) -> None:
        """A run completed: the next preemption is the first again."""
        self._in_a_row = 0

    def preempted(self, error: Exception) -> None:
        """Wait as long as is due, or raise `error` if it is time to give up."""
        if self._max is not None and self._in_a_row >= self._max:
            if self._max:
                error.add_note(f"Gave up after {self._max} recoveries in a row without a completed run.")
            raise error
        wait = 0.0
        if self._in_a_row:
            # The exponent is bounded because the limit may be absent and floats are not.
            wait = min(MAX_BACKOFF_SECS, self._backoff_secs * 2.0 ** min(self._in_a_row - 1, 60))
        self._in_a_row += 1
        _log.info("The session was preempted (%r); making a new one in %.1f s.", error, wait)
        if wait:
            sleep(wait)
