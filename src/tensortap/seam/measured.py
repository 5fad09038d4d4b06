"""What was measured of one run: step statistics and facts, worked out when somebody first asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tensortap.seam.step_facts import StepFacts

__all__ = ["Measured", "StepProfile"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a profiled run.

    Attributes:
        step_stats: a `StepStats` message, filled as TensorFlow fills it.
        facts: what the message has no room for; None if the engine knows nothing more.
        unnamed: executed operations that no node stands for; they keep the engine's own name.
        unmatched: nodes of the run whose execution was not found; they are not in the message.
    """

    step_stats: Any
    facts: StepFacts | None = None
    unnamed: int = 0
    unmatched: int = 0


class StepProfile:
    """A profile that is worked out by the first thread that reads it, so that training need not wait for it.

    >>> profile = StepProfile(lambda: Measured("the message", StepFacts(step=7)))
    >>> profile.step_stats, profile.facts
    ('the message', StepFacts(step=7, ...))
    """

    def __init__(self, work_out: Callable[[], Measured]) -> None:
        self._lock = threading.Lock()
        self._work_out: Callable[[], Measured] | None = work_out
        self._measured: Measured | None = None

    @classmethod
    def of(cls, step_stats: Any) -> StepProfile:
        """The profile of an engine that fills the message itself."""
        return cls(lambda: Measured(step_stats))

    @property
    def measured(self) -> Measured:
        """All of it."""
        with self._lock:
            if self._measured is None:
                assert self._work_out is not None
                self._measured = self._work_out()
                self._work_out = None  # the engine's own record can go
            return self._measured

    @property
    def step_stats(self) -> Any:
        """The `StepStats` message."""
        return self.measured.step_stats

    @property
    def facts(self) -> StepFacts | None:
        """What the message has no room for."""
        return self.measured.facts

    def at_step(self, step: int) -> Measured:
        """The same for a run whose step is known by now."""
        measured = self.measured
        return (
            measured
            if measured.facts is None
            else replace(measured, facts=replace(measured.facts, step=step))
        )
