"""StepCounterHook: how many steps per second."""

from __future__ import annotations

import logging
import os
from typing import Any

from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.hooks.builtin.names import global_step_name, read_step
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.summary import get_event_writer
from tensortap.hooks.timer import SecondOrStepTimer
from tensortap.hooks.writers import as_summary_writer
from tensortap.records import split_tensor_name

__all__ = ["StepCounterHook"]

_log = logging.getLogger("tensortap.hooks")

_MAX_WARNINGS = 5
"""A program that does not advance the step on purpose should not fill its log with reminders."""


class StepCounterHook(SessionRunHook):
    """Logs the steps per second, and writes them as the scalar `<global step>/sec`.

    Args:
        every_n_steps: measure every so many steps.
        every_n_secs: measure every so many seconds; set `every_n_steps=None` then.
        output_dir: where the event file goes; nothing is written without it.
        summary_writer: a writer to use instead: any with `add_scalar(tag, value, step)`, PyTorch's
            `SummaryWriter` too.
        steps_per_run: how far one run is expected to move the global step.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> step = tt.torch.Session(lambda x: {"loss": x.sum()})
        >>> with tt.MonitoredSession(step, hooks=[StepCounterHook(every_n_steps=10)]) as session:
        ...     _ = session.run(feed_dict={"x": torch.ones(3)})
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        summary_writer: Any = None,
        *,
        steps_per_run: int = 1,
    ) -> None:
        self._timer = SecondOrStepTimer(every_secs=every_n_secs, every_steps=every_n_steps)
        self._output_dir = output_dir
        self._writer = as_summary_writer(summary_writer)
        self._steps_per_run = steps_per_run

    def begin(self) -> None:
        """Find the global step and open the event file."""
        self._timer.reset()
        self._warnings = 0
        self._previous_step: int | None = None
        self._step_name = global_step_name(self)
        self._tag = f"{split_tensor_name(self._step_name)[0]}/sec"
        if self._writer is None and self._output_dir:
            self._writer = get_event_writer(self._output_dir)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._step_name)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Measure if it is time; the first time only starts the clock."""
        fetched_step = int(run_values.results)
        if self._timer.should_trigger_for_step(fetched_step + self._steps_per_run):
            step = read_step(run_context.session, self._step_name)
            if self._timer.should_trigger_for_step(step):
                elapsed_secs, elapsed_steps = self._timer.update_last_triggered_step(step)
                if elapsed_secs is not None and elapsed_steps is not None:
                    self._record(elapsed_steps, elapsed_secs, step)
        if fetched_step == self._previous_step and self._warnings < _MAX_WARNINGS:
            self._warnings += 1
            _log.warning("The global step did not advance between two runs: it is still %d.", fetched_step)
        self._previous_step = fetched_step

    def _record(self, elapsed_steps: int, elapsed_secs: float, step: int) -> None:
        speed = elapsed_steps / elapsed_secs if elapsed_secs > 0 else float("inf")
        _log.info("%s: %g", self._tag, speed)
        if self._writer is not None:
            self._writer.add_value(self._tag, speed, step)

    def end(self, session: Any) -> None:
        """Make what was written visible."""
        if self._writer is not None:
            self._writer.flush()
