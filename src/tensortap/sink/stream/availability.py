"""What is believed of a debug server, and when to try it again: back-off as a state machine without a clock."""

from __future__ import annotations

from tensortap.sink.stream_options import StreamOptions

__all__ = ["Availability"]

ANOTHER_ATTEMPT_SECS = 2.0
"""A server that was down is not waited for as long as one that nobody has tried."""
_MOST_DOUBLINGS = 30


class Availability:
    """Whether a server is tried, answers, or is left alone. Times are those of the caller's monotonic clock.

        tried ──── answered ────► answering
        ▲  │                       │    │
        │  └────────┬── failed ◄───┘    │ lost
        │           ▼                   │
        └───── left alone               │
        └───────────────────────────────┘

    Its owner guards it with a lock.

    Attributes:
        is_answering: the last that was heard of the server is an answer.
        failures: attempts in a row that came to nothing.
        takes_batches: whether it does, as it said last.

    >>> server, options = Availability(), StreamOptions(retry_secs=1, max_retry_secs=3.0)
    >>> [server.failed(10.0, options) for _ in range(3)]
    [1.0, 2.0, 3.0]
    >>> server.is_down(12.9), server.is_down(13.0)
    (True, False)
    """

    def __init__(self) -> None:
        self.is_answering = False
        self.failures = 0
        self.takes_batches = False
        self._down_until = float("-inf")
        self._instance: str | None = None
        self._was_silent = False

    def is_down(self, now: float) -> bool:
        """Whether the server is left alone for now."""
        return now < self._down_until

    def connect_timeout(self, options: StreamOptions) -> float:
        """How long the next attempt may take."""
        limit = options.connect_timeout_secs
        return min(limit, ANOTHER_ATTEMPT_SECS) if self.failures else limit

    def answered(self, instance: str | None, takes_batches: bool) -> bool:
        """A stream got its first reply; whether it is another server than last time."""
        is_another, self._instance = instance != self._instance, instance
        self.takes_batches = takes_batches
        self.is_answering = True
        self.failures = 0
        self._down_until = float("-inf")
        self._was_silent = False
        return is_another

    def lost(self) -> None:
        """The connection is gone; the next run tries another."""
        self.is_answering = False

    def failed(self, now: float, options: StreamOptions) -> float:
        """An attempt came to nothing: leave the server alone, each time for longer; for how many seconds."""
        pause = min(options.retry_secs * 2.0 ** min(self.failures, _MOST_DOUBLINGS), options.max_retry_secs)
        self.failures += 1
        self._down_until = now + pause
        self.is_answering = False
        return pause

    @property
    def is_worth_waiting_for(self) -> bool:
        """Whether a run may wait a moment for an answer; not if the last one waited in vain."""
        return not self._was_silent

    def was_silent(self) -> None:
        """A run has waited in vain."""
        self._was_silent = True
