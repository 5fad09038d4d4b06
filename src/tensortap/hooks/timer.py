"""When a periodic hook should act: every so many seconds, or every so many steps."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["NeverTriggerTimer", "SecondOrStepTimer"]

default_clock: Callable[[], float] = time.monotonic
"""Read at every query, so that a test can put a fake clock in its place for all hooks at once."""


class SecondOrStepTimer:
    """Triggers at the first query, then every `every_secs` seconds or every `every_steps` steps.

    It never triggers twice for the same step.

    Args:
        every_secs: seconds between triggers.
        every_steps: steps between triggers; exactly one of the two must be given.
        clock: where the time comes from, in seconds; a monotonic clock by default.

    >>> timer = SecondOrStepTimer(every_steps=10)
    >>> timer.should_trigger_for_step(3)
    True
    >>> timer.update_last_triggered_step(3)
    (None, None)
    >>> [step for step in range(30) if timer.should_trigger_for_step(step)][0]
    13
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: int | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if (every_secs is None) == (every_steps is None):
            raise ValueError(
                "A timer needs exactly one of every_secs and every_steps, got "
                f"every_secs={every_secs!r} and every_steps={every_steps!r}."
            )
        self._every_secs = every_secs
        self._every_steps = every_steps
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget everything, as if newly made."""
        self._last_step: int | None = None
        self._last_time: float | None = None

    def _now(self) -> float:
        return (self._clock or default_clock)()

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it is time to act at `step`."""
        if self._last_step is None or self._last_time is None:
            return True
        if step == self._last_step:
            return False
        if self._every_secs is not None:
            return self._now() >= self._last_time + self._every_secs
        assert self._every_steps is not None
        return step >= self._last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Note that the action was taken at `step`.

        Returns:
            (seconds, steps) since the previous trigger; (None, None) at the first.
        """
        now = self._now()
        elapsed: tuple[float | None, int | None] = (None, None)
        if self._last_step is not None and self._last_time is not None:
            elapsed = (now - self._last_time, step - self._last_step)
        self._last_time, self._last_step = now, step
        return elapsed

    def last_triggered_step(self) -> int | None:
        """The step of the last trigger, None before the first."""
        return self._last_step


class NeverTriggerTimer:
    """A timer that never triggers, for hooks that act only at the end.

    >>> NeverTriggerTimer().should_trigger_for_step(1)
    False
    """

    def reset(self) -> None:
        """Nothing to forget."""

    def should_trigger_for_step(self, step: int) -> bool:
        """Never."""
        return False

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Nothing to note."""
        return (None, None)

    def last_triggered_step(self) -> int | None:
        """There is none."""
        return None
