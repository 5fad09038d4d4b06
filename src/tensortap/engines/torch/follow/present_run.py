"""What has happened in a run so far, and what therefore ends it.

A run ends

- when the optimizers that stepped in the run before have stepped again: normally, with the step of the only one;
- when a model is called after an optimizer has stepped (the two phases of a GAN are two runs);
- between calls of one model that train nothing: evaluation, or a program without an optimizer. Small calls without
  gradients in a program that trains (the steps of a rollout) share a run, which knows when each of them began.

Steps that a gradient scaler leaves out end a run, too. Gradient accumulation stays in one run, as does whatever a
program does with several models on the way to its step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

__all__ = ["MODULES_A_CALL", "MOST_CALLS", "MOST_SHARED_CALLS", "SHARED_MODULES", "PresentRun"]

MOST_CALLS = 1024
"""Calls of models in one run, after which it ends in any case: a loop that trains nothing must not grow forever."""

MOST_SHARED_CALLS = 256
"""How many calls without gradients share a run: a rollout, in most programs. What a call costs besides its ops is then
little."""

SHARED_MODULES = 120
MODULES_A_CALL = 8
"""How many modules these calls may have called, those within modules included, and how many more for each call: large
models are on their own, so that there are few names to learn."""

_PASS = 0
"""Stands for an optimizer, of which no identity is 0, where there is none."""


class PresentRun:
    """Calls and steps since the last run ended.

    Attributes:
        stepped: optimizers that have stepped.
        trains: whether a model was called to be trained.
        passes: how many backward passes stand for steps of optimizers.
        calls: of models.
        modes: of models that are called without gradients.

    >>> run = PresentRun()
    >>> run.ends_with_step(7, living=[7])
    True
    >>> run.next()
    >>> run.note_call(1, trains=False, shares=False)
    >>> run.ends_before_call(1, trains=False, may_share=False)
    True
    """

    def __init__(self) -> None:
        self._expected: set[int] = set()  # optimizers that stepped in the run before
        self._forget()

    def _forget(self) -> None:
        self.stepped: set[int] = set()
        self._called: set[int] = set()
        self.calls = 0
        self.modes: dict[str, str] = {}
        self.trains = False
        self.passes = 0
        self._call_times: list[int] = []  # of calls that share this run, in microseconds

    def next(self) -> None:
        """Another run begins."""
        if self.stepped:
            self._expected = self.stepped
        self._forget()

    def ends_with_step(self, optimizer: int, living: Iterable[int]) -> bool:
        """An optimizer steps; whether all have that are expected to, or this one has done so before.

        Args:
            optimizer: its identity.
            living: those of all there are.
        """
        repeated = optimizer in self.stepped
        self.stepped.add(optimizer)
        if repeated or (self._expected and self.stepped >= self._expected):
            return True
        there = set(living)
        return self.stepped >= (self._expected & there or there)

    def end_with_passes(self, steps: int) -> None:
        """A backward pass ends the run, of a program without optimizers; it was so many steps."""
        self.passes = steps
        self.stepped.add(_PASS)

    def is_step_alone(self, optimizer: int) -> bool:
        """Whether a run in which no call was noted ends with this step, as the one before did."""
        return (
            not self.calls and not self.stepped and len(self._expected) == 1 and optimizer in self._expected
        )

    def ends_before_call(self, model: int, trains: bool, may_share: bool) -> bool:
        """Whether the call of a model is part of the next run.

        Args:
            model: its identity.
            trains: it is called to be trained.
            may_share: the call has no gradients, and may be one of several that make up a run.
        """
        if self.stepped or self.calls >= MOST_CALLS:
            return True
        if self.trains:
            return False
        if model in self._called and not may_share:
            return True
        return trains and self.calls > len(self._called)

    def has_room(self, modules: int) -> bool:
        """Whether another call without gradients may join those that make up the run so far, which called so many."""
        most_modules = SHARED_MODULES + self.calls * MODULES_A_CALL
        return len(self._call_times) == self.calls < MOST_SHARED_CALLS and modules < most_modules

    def note_call(self, model: int, trains: bool, shares: bool) -> None:
        """A model is called in this run; it shares the run if it is called without gradients."""
        if shares and len(self._call_times) == self.calls:
            self._call_times.append(time.time_ns() // 1000)
        self._called.add(model)
        self.calls += 1
        self.trains = self.trains or trains

    def note_calls(self, models: Iterable[int], calls: int, trains: bool, times: Iterable[int]) -> None:
        """Models were called so many times, and nobody heard of it; those calls that share the run began then."""
        self._call_times += times
        self._called.update(models)
        self.calls += calls
        self.trains = self.trains or trains

    @property
    def extent(self) -> tuple[int, int, bool, int]:
        """How many calls there were, of how many models, whether for training, and how many share the run."""
        return self.calls, len(self._called), self.trains, len(self._call_times)

    @property
    def call_times(self) -> tuple[int, ...]:
        """When each of several calls began that share the run."""
        return tuple(self._call_times) if self.calls > len(self._called) else ()

    @property
    def is_for_training(self) -> bool | None:
        """Whether models were trained; None if none was called."""
        return (self.trains or bool(self.stepped)) if self.calls or self.stepped else None
