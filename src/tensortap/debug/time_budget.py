"""How much time watching may take: which runs are watched in full, so that a program stays within a ratio.

What watching costs is known by comparing the runs that are watched with those that are not. Every run that is not
earns some time, and when that is enough for one, a run soon after is watched: which one is left to chance, because a
program may take turns (rollouts and updates, two phases of a GAN), and the runs that are compared must be of all
kinds. The first runs are watched on credit, until they have taken a second: that is when a program is learned, and when
most programs that fail do so. Threads of ours that work beside the program (writing, judging) count, too: they take its
cores, or its interpreter.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["TimeBudget"]

log = logging.getLogger("tensortap.hooks")

_FIRST_RUNS = 5
_FIRST_SECS = 1.0
"""So many runs are watched at first, and no more once they have taken so long; the first one in any case."""

_PLAIN_RUNS = 63
"""How many runs that were not watched say how long one takes."""

_LEAST_PLAIN = 3
"""Before so many of them are known, nothing is."""

_ODD = 16.0
"""What takes so many times as long as most runs (a checkpoint, a pause) says nothing of the others."""

_MOST_EARNED = 3.0
"""Watched runs for which time can be saved up: a long calm must not end in a long burst."""

_USED = 0.5
"""Of the time there is, how much is used. The rest is for what no clock of ours shows, which is about as much where
steps take a millisecond: caches that are cold after a watched run, a larger heap for Python's collector to look
through, hooks that hear of updates and do nothing."""

_MOST_OWED_SECS = 5.0
"""What a run took may have been the program's own doing; a program that is watched too little is of no use."""


_THREADS_EVERY_SECS = 0.01
"""How often threads of ours are asked what they have taken."""


class TimeBudget:
    """Decides which runs are watched, and adds up what that costs.

    Args:
        ratio: time of the program with us over its time without, as in 1.1.
        beside: tells the seconds that threads of ours have taken since it was asked last; by default they are measured.

    Attributes:
        watched: runs that were watched in full.
        left_out: the others.
        bad: step (-1 if there are none) and name of what was found bad in a run that was not watched; from then on all
            are.

    Raises:
        ValueError: a ratio that leaves no time at all.

    >>> budget = TimeBudget(1.1, beside=lambda: 0.0)
    >>> for _ in range(2000):
    ...     watched = budget.wants_next()
    ...     budget.ran(watched, seconds=0.003 if watched else 0.001)
    >>> 40 < budget.watched < 80, 1.03 < budget.cost < 1.07
    (True, True)
    """

    def __init__(self, ratio: float, beside: Callable[[], float] | None = None) -> None:
        if not 1 < ratio < float("inf"):
            raise ValueError(f"A budget of time is a ratio above 1, as in 1.1; got {ratio!r}.")
        self.ratio = ratio
        self._share = _USED * (ratio - 1)
        self.watched = 0
        self.left_out = 0
        self.bad: tuple[int, str] | None = None
        self._chance = random.Random(0)  # not that of the program
        self._plain: deque[float] = deque(maxlen=_PLAIN_RUNS)
        self._plain_secs = 0.0
        self._unsettled: list[
            float
        ] = []  # what watched runs took while nothing was known to compare them with
        self._extra = 0.0  # what a watched run costs
        self._earned = 0.0
        self._since = 0  # times that the next run was not watched, since the last that was
        self._wait = (
            -1
        )  # how many more runs before the next is watched; negative while there is not enough time
        self._spent = 0.0
        self._program = 0.0
        self._beside = beside or _Beside().new_seconds

    @property
    def cost(self) -> float:
        """What we have cost so far, as a ratio like the one that was asked for."""
        return 1 + max(self._spent, 0.0) / self._program if self._program else 1.0

    @property
    def seconds(self) -> float:
        """What we have cost so far."""
        return max(self._spent, 0.0)

    @property
    def owes(self) -> bool:
        """Whether we have taken more time than there was."""
        return self._earned < 0

    def finds(self, step: int, what: str) -> None:
        """Something is bad in a run that is not watched: say what is known, and watch all that follow."""
        if self.bad is None:
            self.bad = step, what
            log.warning(
                "%s was not watched, for the sake of the budget of %g, and after it %s is NaN or infinite. Which "
                "operation made it so is not known; all runs are watched from now on.",
                f"Step {step}" if step >= 0 else f"Run {self.watched + self.left_out}",
                self.ratio,
                what,
            )

    def wants_next(self) -> bool:
        """Whether to watch the next run; to be asked once for each."""
        if self.bad is not None or not self.watched:
            return True
        if not self.left_out and self.watched < _FIRST_RUNS and sum(self._unsettled) < _FIRST_SECS:
            return True
        if self._unsettled or self._earned < self._extra:
            self._wait = -1
            return False
        if self._wait < 0:
            self._wait = self._chance.randrange(max(self._since, 2))
        self._wait -= 1
        return self._wait < 0

    def ran(self, was_watched: bool, seconds: float, own_seconds: float = 0.0, runs: int = 1) -> None:
        """A run is over, or several that were not watched.

        Args:
            was_watched: whether it was watched in full.
            seconds: how long it took.
            own_seconds: how long we took in a run that was not watched.
            runs: how many took that long together.
        """
        beside = self._beside()
        self._spent += beside
        self._earned -= beside
        if was_watched:
            self.watched += 1
            self._since = 0
            self._unsettled.append(seconds)
        else:
            self.left_out += runs
            self._since += 1
            plain = max(seconds - own_seconds, 0.0)
            self._learn(plain / runs)
            self._spent += own_seconds
            self._program += plain
            self._earned += self._share * plain - own_seconds
        if len(self._plain) >= _LEAST_PLAIN:
            self._settle()

    def _learn(self, plain: float) -> None:
        if len(self._plain) >= _LEAST_PLAIN:
            plain = min(plain, _ODD * self._plain_secs / len(self._plain))
        if len(self._plain) == _PLAIN_RUNS:
            self._plain_secs -= self._plain[0]
        self._plain.append(plain)
        self._plain_secs += plain

    def _settle(self) -> None:
        """Count what watched runs took in excess. A single one may have been short for its kind: that evens out."""
        usual = self._plain_secs / len(self._plain)
        for seconds in self._unsettled:
            extra = seconds - usual
            self._extra += (extra - self._extra) / min(self.watched, 4)
            self._spent += extra
            self._program += usual
            self._earned += self._share * usual - extra
        self._unsettled.clear()
        self._extra = max(self._extra, 0.0)
        self._earned = max(min(self._earned, _MOST_EARNED * self._extra), -_MOST_OWED_SECS)


class _Beside:
    """Processor time of the threads of ours that live; what one has taken last before it ended is not known."""

    def __init__(self) -> None:
        self._asked = 0.0
        self._taken: dict[int, float] = {}

    def new_seconds(self) -> float:
        """What they have taken since the last time; 0 if that was a moment ago."""
        now = time.monotonic()
        if now - self._asked < _THREADS_EVERY_SECS or not hasattr(time, "pthread_getcpuclockid"):
            return 0.0
        is_first, self._asked = not self._asked, now
        taken = {}
        for (
            thread
        ) in threading.enumerate():  # those that are listed are there, as long as we have the interpreter
            if thread.name.startswith("tensortap") and thread.ident is not None:
                taken[thread.ident] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        new = sum(max(secs - self._taken.get(each, 0.0), 0.0) for each, secs in taken.items())
        self._taken = taken
        return 0.0 if is_first else new
