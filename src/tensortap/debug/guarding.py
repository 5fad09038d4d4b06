"""A budget of time for the runs of a session: some are watched in full, the others guarded by the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from tensortap.debug.time_budget import TimeBudget
from tensortap.seam.base import Guard, engine_session_of, guard_of

__all__ = ["Guarding", "SharedGuarding", "share_budget", "step_of"]


class Guarding:
    """Says which runs are watched, and looks at the others.

    Args:
        ratio: time of the program with us over its time without, as in 1.1.
        on_bad: called when something is bad in a run that was not watched.

    Attributes:
        budget: decides, and knows what it has cost.

    >>> import torch, tensortap as tt
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> optimizer = torch.optim.SGD([weight], lr=0.1)
    >>> session = tt.torch.Session(lambda: weight.sum().backward() or optimizer.step())
    >>> guarding = Guarding(1.1)
    >>> guarding.begins(session)  # the first runs are watched
    True
    >>> guarding.ended()
    """

    def __init__(self, ratio: float, on_bad: Callable[[], None] = lambda: None) -> None:
        self.budget = TimeBudget(ratio)
        self._on_bad = [on_bad]
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    def begins(self, session: Any) -> bool:
        """A run begins; whether it is watched.

        Raises:
            NotImplementedError: the engine cannot guard those that are not.
        """
        began = time.perf_counter()
        run: _Run = self._of_thread.__dict__.setdefault("run", _Run())
        if run.is_open:  # the last one failed: what it has done is looked at, and what it took says nothing
            self._look(run)
        engine = engine_session_of(session)
        if run.guard is None or run.engine is not engine:
            run.guard, run.engine = guard_of(engine), engine
        with self._lock:
            run.is_watched = self.budget.wants_next()
        run.is_open, run.began, run.step = True, began, step_of(engine)
        if not run.is_watched:
            run.guard.begin()
        run.own_secs = time.perf_counter() - began
        return run.is_watched

    def ended(self) -> None:
        """The run of this thread is over."""
        run: _Run | None = self._of_thread.__dict__.get("run")
        if run is None or not run.is_open:
            return
        began = time.perf_counter()
        self._look(run)
        now = time.perf_counter()
        if run.step >= 0 and step_of(run.engine) == run.step:
            return  # it only read state
        with self._lock:
            self.budget.ran(run.is_watched, now - run.began, run.own_secs + now - began)

    @property
    def is_watching(self) -> bool:
        """Whether the present run of this thread is watched."""
        run: _Run | None = self._of_thread.__dict__.get("run")
        return run is None or not run.is_open or run.is_watched

    def tell_of_bad(self, listener: Callable[[], None]) -> None:
        """Call this, too, when something is bad in a run that was not watched."""
        self._on_bad.append(listener)

    @property
    def outcome(self) -> str:
        """Which runs were watched, and what it cost."""
        budget = self.budget
        bad = (
            ""
            if budget.bad is None
            else f"; {budget.bad[1]} was bad in step {budget.bad[0]}, which was not watched"
        )
        return (
            f"{budget.watched:,} of {budget.watched + budget.left_out:,} runs watched, at {budget.cost:.2f} times the "
            f"program's own time ({budget.ratio:g} was asked for){bad}"
        )

    def _look(self, run: _Run) -> None:
        run.is_open = False
        if run.is_watched or run.guard is None:
            return
        bad = run.guard.end()
        if bad is not None and self.budget.bad is None:
            with self._lock:
                self.budget.finds(run.step, bad)
            for tell in self._on_bad:
                tell()


class SharedGuarding:
    """A budget that several hooks share, as each of them sees it: somebody else says when runs begin and end.

    >>> shared = SharedGuarding(Guarding(1.1))
    >>> shared.begins(None)
    True
    """

    def __init__(self, guarding: Guarding) -> None:
        self._guarding = guarding
        self.budget = guarding.budget
        self.tell_of_bad = guarding.tell_of_bad

    def begins(self, session: Any) -> bool:
        """Whether the present run is watched."""
        return self._guarding.is_watching

    def ended(self) -> None:
        """Nothing, here."""

    @property
    def outcome(self) -> str:
        """Which runs were watched, and what it cost."""
        return self._guarding.outcome


def share_budget(ratio: float, hooks: Iterable[Any]) -> Guarding:
    """Have all hooks that can be guarded watch the same runs, within one budget of time.

    Raises:
        ValueError: a ratio that leaves no time, or there is no such hook, or one has a budget of its own.
    """
    guarding = Guarding(ratio)
    guarded = [hook for hook in hooks if callable(getattr(hook, "guard_with", None))]
    if not guarded:
        raise ValueError(
            f"budget={ratio!r} is for debug hooks, such as DumpingDebugHook, and there is none among the hooks."
        )
    for hook in guarded:
        hook.guard_with(SharedGuarding(guarding))
    return guarding


class _Run:
    """What is known of the run of a thread."""

    guard: Guard | None = None
    engine: Any = None
    is_open = False
    is_watched = False
    began = 0.0
    own_secs = 0.0
    step = -1


def step_of(session: Any) -> int:
    """The global step of a session, -1 if it keeps none.

    >>> step_of(object())
    -1
    """
    step = getattr(engine_session_of(session), "global_step", None)
    return step if isinstance(step, int) else -1
