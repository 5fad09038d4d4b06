"""How far the stream of one run has come, as a state machine without threads and clock."""

from __future__ import annotations

from tensortap.sink.reasons import STALLED, UNREACHABLE

__all__ = ["Course"]


class Course:
    """The course of one stream.

        waiting ──► connecting ──► sending ──► over, well        the server has all of it
           ▲            │             │
           └── again ◄──┤             └──────► over, lost        given up
                        └──► spooling ───────► over, spooled     written to the disk instead

    Up to "sending" nothing but metadata has been sent, and another attempt, or the disk, can have all of it.
    Attempts are numbered, so that what belongs to one that was given up is recognised. Guarded by its owner's lock.

    Attributes:
        lost_because: why it was given up, None as long as it was not.
        is_over: it has ended, one way or another.
        is_spooled: it goes to the disk.
        is_answered: the server has replied to this attempt.
        all_sent: the last message has been taken.
        brings_graph: one of them was a graph, which later runs will not send again.

    >>> course = Course()
    >>> attempt = course.attempt(now=0.0)
    >>> course.overdue(now=3.0, connect_secs=2.0, stall_secs=5.0)
    'server unreachable'
    >>> course.retire(), course.begin(attempt), course.can_begin_again
    (True, False, True)
    """

    def __init__(self) -> None:
        self.lost_because: str | None = None
        self.is_over = False
        self.is_spooled = False
        self.is_answered = False
        self.all_sent = False
        self.brings_graph = False
        self._has_begun = False
        self._attempt = 0
        self._started: float | None = None
        self._moved = 0.0
        self._is_sending = False

    @property
    def can_begin_again(self) -> bool:
        """Whether nothing but metadata has been sent yet."""
        return not self._has_begun and not self.is_over

    @property
    def is_out_of_the_way(self) -> bool:
        """Whether the next run may begin, although the server has not confirmed this one."""
        return self.all_sent and not self.brings_graph

    def attempt(self, now: float) -> int:
        """Begin to connect; the number of this attempt."""
        self._started = now if self._started is None else self._started
        self._moved = now
        self.is_answered = False
        self._attempt += 1
        return self._attempt

    def answer(self, now: float) -> None:
        """The server has replied."""
        self.is_answered = True
        self._moved = now

    def begin(self, attempt: int) -> bool:
        """Begin to send records; False if the attempt was given up meanwhile."""
        if attempt != self._attempt or self.is_over or self._has_begun:
            return False
        self._has_begun = True
        return True

    def retire(self) -> bool:
        """Give up the attempt that is under way; False if it is sending already."""
        if not self.can_begin_again:
            return False
        self._attempt += 1
        return True

    def divert(self) -> bool:
        """Have it written to the disk; False if part of it has been sent."""
        if not self.retire():
            return False
        self._has_begun = self.is_spooled = True
        return True

    def hand_over(self, now: float) -> None:
        """A message is offered."""
        self._moved, self._is_sending = now, True

    def taken(self, now: float) -> None:
        """It was taken."""
        self._moved, self._is_sending = now, False

    def complete(self, now: float) -> None:
        """The last message was taken."""
        self._moved, self.all_sent = now, True

    def end(self, lost_because: str | None = None) -> bool:
        """It is over; False if it was before."""
        if self.is_over:
            return False
        self.is_over = True
        self.lost_because = lost_because
        return True

    def overdue(self, now: float, connect_secs: float, stall_secs: float) -> str | None:
        """Why it has to be given up now, None if it need not be."""
        if not self.is_answered:
            started = now if self._started is None else self._started
            return UNREACHABLE if now - started > connect_secs else None
        waits_for_server = self._is_sending or self.all_sent
        return STALLED if waits_for_server and now - self._moved > stall_secs else None
