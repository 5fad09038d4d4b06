"""Runs of a program that are not watched, for the sake of a budget of time: each is guarded instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["GuardedRuns"]


class GuardedRuns:
    """Says which runs are watched, and guards the others.

    Args:
        watch: has the budget, and hears of what is bad; without a budget, every run is watched.
    """

    def __init__(self, watch: Any) -> None:
        self._watch = watch
        self._began = 0.0

    def watches_next(self) -> bool:
        """Whether the run that is about to begin is watched; to be asked once for each."""
        budget = self._watch.budget
        self._began = time.perf_counter()
        return budget is None or bool(budget.wants_next())

    def was_watched(self) -> None:
        """A run that was watched is over. If nobody asked for it, it says nothing: it is a function's first call."""
        began, self._began = self._began, 0.0
        if self._watch.budget is not None and began:
            self._watch.budget.ran(True, time.perf_counter() - began)

    def run(
        self, owner: Any, execute: Callable[[Any], Any], options: Any, give_up: Callable[[], None]
    ) -> Any:
        """A run that is guarded.

        Args:
            owner: whose run it is: a session of ours, or the functions of the program.
            execute: does it, given options for TensorFlow's session.
            options: what the program itself has given.
            give_up: called when guarding fails; the run is executed all the same.
        """
        guard: Any = None
        merged = options
        around: AbstractContextManager[None] = nullcontext()
        try:
            guard = owner.guard()
            guard.begin()
            merged, around = owner.with_guard(options), owner.functions_with_guard()
        except Exception:
            give_up()
        started = time.perf_counter()
        try:
            with around:
                result = execute(merged)
        finally:
            ended = time.perf_counter()
            try:
                self._ended(owner, guard)
            except Exception:
                give_up()
        now, began, self._began = time.perf_counter(), self._began, 0.0
        self._watch.budget.ran(False, now - began, started - began + now - ended)
        return result

    def _ended(self, owner: Any, guard: Any) -> None:
        bad = None if guard is None else guard.end()
        owner.count_run()
        if bad is not None:
            self._watch.finds_unwatched(owner.global_step - 1, bad)
