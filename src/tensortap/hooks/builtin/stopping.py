"""Hooks that stop when the global step arrives somewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.hooks.builtin.names import global_step_name, read_step
from tensortap.hooks.coordinator import Coordinator
from tensortap.hooks.hook import SessionRunHook

__all__ = ["MultiStepStopAtStepHook", "StopAtStepHook"]


class StopAtStepHook(SessionRunHook):
    """Requests a stop when the global step reaches a number.

    Args:
        num_steps: stop after this many steps, counted from where the first session starts (a recovery does
            not start the count again).
        last_step: stop at this step. Exactly one of the two must be given.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> step = tt.torch.Session(lambda x: {"loss": x.sum()})
        >>> with tt.MonitoredSession(step, hooks=[StopAtStepHook(num_steps=3)]) as session:
        ...     while not session.should_stop():
        ...         _ = session.run(feed_dict={"x": torch.ones(3)})
        ...     int(session.run_step_fn(lambda step_context: step_context.session.run("global_step:0")))
        3
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise ValueError(
                f"Give exactly one of num_steps and last_step, got {num_steps!r} and {last_step!r}."
            )
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self) -> None:
        """Find the global step."""
        self._step_name = global_step_name(self)

    def after_create_session(self, session: Any, coord: Coordinator) -> None:
        """Fix the last step, once."""
        if self._last_step is None:
            assert self._num_steps is not None
            self._last_step = read_step(session, self._step_name) + self._num_steps

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._step_name)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Stop if it has arrived."""
        assert self._last_step is not None
        # What was fetched may be from before the step, or from before another worker's step: when it is
        # near, look again.
        if int(run_values.results) + 1 >= self._last_step:
            step = read_step(run_context.session, self._step_name)
            if step >= self._last_step:
                run_context.request_stop()


class MultiStepStopAtStepHook(StopAtStepHook):
    """Stops exactly at a step although one run makes several.

    Before a run that would go too far, it lowers the number of steps per run.

    Args:
        num_steps: stop after this many steps.
        last_step: stop at this step. Exactly one of the two must be given.
        steps_per_run: how many steps a run makes as long as there are enough left.
        set_steps_per_run: called with the number of steps the next run shall make.

    Example:
        >>> import tensortap as tt
        >>> amount = []
        >>> hook = MultiStepStopAtStepHook(last_step=5, steps_per_run=2, set_steps_per_run=amount.append)
        >>> session = tt.torch.Session(lambda: None, global_step=4)
        >>> with tt.MonitoredSession(session, hooks=[hook]):
        ...     amount
        [1]
    """

    def __init__(
        self,
        num_steps: int | None = None,
        last_step: int | None = None,
        steps_per_run: int = 1,
        *,
        set_steps_per_run: Callable[[int], Any],
    ) -> None:
        super().__init__(num_steps, last_step)
        if steps_per_run < 1:
            raise ValueError(f"steps_per_run must be positive, got {steps_per_run}.")
        self._steps_per_run = steps_per_run
        self._set_steps_per_run = set_steps_per_run

    def after_create_session(self, session: Any, coord: Coordinator) -> None:
        """Fix the last step, and prepare the first run."""
        super().after_create_session(session, coord)
        self._prepare_next_run(read_step(session, self._step_name))

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Stop if the step has arrived, else prepare the next run."""
        assert self._last_step is not None
        step = read_step(run_context.session, self._step_name)
        if step >= self._last_step:
            run_context.request_stop()
        else:
            self._prepare_next_run(step)

    def _prepare_next_run(self, step: int) -> None:
        assert self._last_step is not None
        self._set_steps_per_run(max(1, min(self._steps_per_run, self._last_step - step)))
