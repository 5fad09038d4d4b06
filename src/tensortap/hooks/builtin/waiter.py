"""GlobalStepWaiterHook: start later than the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tensortap.hooks.args import SessionRunContext
from tensortap.hooks.builtin.names import global_step_name, read_step
from tensortap.hooks.hook import SessionRunHook

__all__ = ["GlobalStepWaiterHook"]

_log = logging.getLogger("tensortap.hooks")

POLL_SECS = 0.5
PROGRESS_STEPS = 1000

sleep: Callable[[float], None] = time.sleep
"""Replaceable, so that tests do not wait."""


class GlobalStepWaiterHook(SessionRunHook):
    """Blocks the first run until other workers have brought the global step to a number.

    Args:
        wait_until_step: the step to wait for; 0 or less does not wait.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> step = tt.torch.Session(lambda x: {"loss": x.sum()})
        >>> with tt.MonitoredSession(step, hooks=[GlobalStepWaiterHook(0)]) as session:
        ...     _ = session.run(feed_dict={"x": torch.ones(3)})
    """

    def __init__(self, wait_until_step: int) -> None:
        self._wait_until_step = wait_until_step

    def begin(self) -> None:
        """Find the global step."""
        self._waiting = self._wait_until_step > 0
        self._step_name = global_step_name(self)

    def before_run(self, run_context: SessionRunContext) -> None:
        """Wait, the first time."""
        if not self._waiting:
            return
        reported: int | None = None
        while (step := read_step(run_context.session, self._step_name)) < self._wait_until_step:
            if reported is None or step - reported > PROGRESS_STEPS:
                _log.info("Waiting for global step %d; it is %d now.", self._wait_until_step, step)
                reported = step
            sleep(POLL_SECS)
        self._waiting = False
