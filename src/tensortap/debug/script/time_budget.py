"""How much time watching may take: which runs are watched in full, so that a program stays within a ratio.

What watching costs is known by comparing the runs that are watched with those that are not. Every run that is not
earns some time, and when that is enough for one, the next run is watched. The first runs are watched in any case: that
is when a program is learned, and when most programs that fail do so.
"""

from __future__ import annotations

from collections import deque

__all__ = ["TimeBudget"]

_FIRST_RUNS = 5
"""Watched in full, whatever they cost."""

_PLAIN_RUNS = 31
"""How many runs that were not watched say how long one takes."""

_MOST_EARNED = 3.0
"""Watched runs for which time can be saved up: a long calm must not end in a long burst."""


class TimeBudget:
    """Decides which runs are watched, and adds up what that costs.

    Args:
        ratio: time of the program with us over its time without, as in 1.1.

    Attributes:
        watched: runs that were watched in full.
        left_out: the others.
        bad: step and name of what was found bad in a run that was not watched; from then on all are.

    Raises:
        ValueError: a ratio that leaves no time at all.

    >>> budget = TimeBudget(1.1)
    >>> for _ in range(1000):
    ...     watched = budget.wants_next()
    ...     budget.ran(watched, seconds=0.003 if watched else 0.001)
    >>> budget.watched, round(budget.cost, 2)
    (52, 1.09)
    """

    def __init__(self, ratio: float) -> None:
        if not ratio > 1:
            raise ValueError(f"A budget is more than 1, as in 1.1; got {ratio!r}.")
        self.ratio = ratio
        self.watched = 0
        self.left_out = 0
        self.bad: tuple[int, str] | None = None
        self._plain: deque[float] = deque(maxlen=_PLAIN_RUNS)
        self._extra = 0.0
        self._earned = 0.0
        self._spent = 0.0
        self._program = 0.0

    @property
    def cost(self) -> float:
        """What watching has cost since the first runs, as a ratio like the one that was asked for."""
        return 1 + self._spent / self._program if self._program else 1.0

    def wants_next(self) -> bool:
        """Whether to watch the next run."""
        if self.bad is not None or self.watched < _FIRST_RUNS:
            return True
        return len(self._plain) >= min(_PLAIN_RUNS, _FIRST_RUNS) and self._earned >= self._extra

    def ran(self, was_watched: bool, seconds: float, own_seconds: float = 0.0) -> None:
        """A run is over.

        Args:
            was_watched: whether it was watched in full.
            seconds: how long it took.
            own_seconds: how long we took in a run that was not watched.
        """
        if was_watched:
            self.watched += 1
            plain = sorted(self._plain)[len(self._plain) // 2] if self._plain else 0.0
            if self.watched > _FIRST_RUNS and self.bad is None:
                self._extra = max(seconds - plain, 0.0)
                self._earned -= self._extra
                self._spent += self._extra
                self._program += seconds - self._extra
            elif self.watched == _FIRST_RUNS:
                self._extra = seconds
        else:
            self.left_out += 1
            plain = max(seconds - own_seconds, 0.0)
            self._plain.append(plain)
            self._spent += own_seconds
            self._program += plain
            self._earned += (self.ratio - 1) * plain - own_seconds
            self._earned = min(self._earned, _MOST_EARNED * self._extra)
