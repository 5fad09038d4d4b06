"""StopAtStepHook: stop when the global step arrives somewhere."""

from __future__ import annotations

from typing import Any

from tensortap.run.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.run.builtin.names import global_step_name, read_step
from tensortap.run.coordinator import Coordinator
from tensortap.run.hooks import SessionRunHook

__all__ = ["StopAtStepHook"]


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
