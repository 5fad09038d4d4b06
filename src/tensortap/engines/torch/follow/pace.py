"""When a budget of time is asked: at the end of each unit of a program, and what the unit has cost."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["Pace"]

_CALLS = 32
"""Calls of models after which a unit ends without a step: an evaluation must not be watched as a whole for a step."""

_ALIKE = 64
_ALIKE_SECS = 0.02
"""So many units that are not watched are told together, if they take less than that."""


class Pace:
    """Cuts a program into units, of which each is watched as a whole, or not at all.

    A unit goes from step to step, or over some calls of models, whether it is watched or not: so what the one takes can
    be compared with what the other does. Entered as a context manager, it counts the time of the block as ours.

    Args:
        budget: a `TimeBudget`.

    >>> from tensortap.debug.time_budget import TimeBudget
    >>> pace = Pace(TimeBudget(1.1))
    >>> pace.watches_next(stepped=True), pace.call_ends_unit(trains=True)
    (True, False)
    """

    def __init__(self, budget: Any) -> None:
        self._budget = budget
        self._watches = True
        self._began = 0.0
        self._calls = 0
        self._is_over = False
        self._own_secs = 0.0
        self._own_since = 0.0
        self._depth = 0
        self._units = 1  # of which the present one is the last

    def __enter__(self) -> None:
        if not self._depth:
            self._own_since = time.perf_counter()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._own_secs += time.perf_counter() - self._own_since

    def calls_left(self, trains: bool) -> int:
        """How many calls of models do not end the unit."""
        return 0 if self._budget.bad is not None or not trains else max(_CALLS - self._calls, 0)

    def add(self, calls: int, own_secs: float) -> None:
        """Models were called that did not end the unit, and we took so long over them."""
        self._calls += calls
        self._own_secs += own_secs

    def call_ends_unit(self, trains: bool) -> bool:
        """A model is called; whether the unit ends before that, in a program that trains, or one that does not."""
        self._calls += 1
        if self._calls > (_CALLS if trains else 1) or (self._budget.bad is not None and not self._watches):
            self._is_over = True
        return self._is_over

    def goes_on(self, now: float) -> bool:
        """Whether the unit after one that is not watched is surely not watched, either."""
        return self._units < _ALIKE and now - self._began < _ALIKE_SECS and not self._is_over

    def go_on(self, since: float) -> None:
        """Such a unit is over; we have looked at it since then."""
        self._units += 1
        self._calls = 0
        self._own_secs += time.perf_counter() - since

    def end(self) -> None:
        """No more units; tell of those that were not told yet."""
        if self._units > 1:
            self._budget.ran(False, time.perf_counter() - self._began, self._own_secs, self._units - 1)
            self._units = 1

    def watches_next(self, stepped: bool) -> bool:
        """A run is over, in which an optimizer may have stepped; whether the next one is watched."""
        now = time.perf_counter()
        if not self._began:
            self._watches = self._budget.wants_next()
            self._begin(now)
        elif stepped or self._is_over:
            own = self._own_secs
            if self._depth:
                own += now - self._own_since
            self._budget.ran(self._watches, now - self._began, own, self._units)
            self._watches = self._budget.wants_next()
            self._begin(now)
        return self._watches

    def _begin(self, now: float) -> None:
        self._began, self._own_secs, self._calls, self._is_over = now, 0.0, 0, False
        self._own_since = now
        self._units = 1
