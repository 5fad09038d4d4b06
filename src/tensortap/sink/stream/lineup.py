"""Which stream may begin: runs wait for their turn, arrive in their order, and few are under way at once."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

__all__ = ["Lineup"]


class Queued(Protocol):
    """What a stream must tell."""

    @property
    def is_ended(self) -> bool:
        """Whether the run is over."""

    @property
    def is_out_of_the_way(self) -> bool:
        """Whether the next run may begin."""

    @property
    def can_begin_again(self) -> bool:
        """Whether nothing of it has been sent."""


StreamT = TypeVar("StreamT", bound=Queued)


class Lineup(Generic[StreamT]):
    """Streams that wait and streams that are under way. Guarded by its owner's lock.

    Args:
        most: how many may be under way at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[StreamT] = deque()
        self._active: list[StreamT] = []

    @property
    def waiting(self) -> list[StreamT]:
        """Those that wait, in their order."""
        return list(self._waiting)

    @property
    def active(self) -> list[StreamT]:
        """Those under way."""
        return list(self._active)

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self._waiting and not self._active

    @property
    def has_ended_runs(self) -> bool:
        """Whether one of them belongs to a run that is over, so that somebody may wait for it."""
        return any(stream.is_ended for stream in (*self._waiting, *self._active))

    def add(self, stream: StreamT) -> None:
        """Have a stream wait for its turn."""
        self._waiting.append(stream)

    def next(self, is_answering: bool) -> StreamT | None:
        """The stream that may begin now, which counts as under way; None if none may.

        Args:
            is_answering: whether the server does; otherwise it is tried with one stream at a time.
        """
        while self._waiting and not self._waiting[0].can_begin_again:
            self._waiting.popleft()  # given up while it waited
        if not self._waiting or len(self._active) >= self._most:
            return None
        if self._active and not is_answering:
            return None
        if any(stream.is_ended and not stream.is_out_of_the_way for stream in self._active):
            return None  # runs arrive in their order
        stream = self._waiting.popleft()
        self._active.append(stream)
        return stream

    def put_back(self, stream: StreamT) -> bool:
        """Have a stream that is under way wait again, before all others; False if it cannot begin again."""
        if stream not in self._active or not stream.can_begin_again:
            return False
        self._active.remove(stream)
        self._waiting.appendleft(stream)
        return True

    def give_up_waiting(self) -> list[StreamT]:
        """Those that wait. Until each of them leaves they count as under way, so that nobody thinks all was done."""
        given_up = list(self._waiting)
        self._waiting.clear()
        self._active += given_up
        return given_up

    def leave(self, stream: StreamT) -> None:
        """A stream is not under way any more."""
        if stream in self._active:
            self._active.remove(stream)
