"""Executing a call again that returned something bad, to find what made it: each time is a run of its own.

1. With taps behind its equations. That is nearly always enough.
2. Operation by operation, if nothing was bad then: taps change what XLA fuses, and here nothing is fused.
3. As it is, if nothing was bad either: to know whether its own executable returns that again. If so, the operations
   are good one by one, and what XLA makes of them together is not; if not, the program does not repeat itself.

A call whose arguments were donated, and not copied, cannot be executed again: its results are all there is to tell of.
A call that several processes execute together is executed again by all of them, once, with taps: they see different
parts of it, and must not decide differently.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from tensortap.engines.jax import calls
from tensortap.engines.jax.calls import Call
from tensortap.engines.jax.follow.pending import Pending
from tensortap.engines.jax.loop import LoopSession
from tensortap.engines.jax.program import Site
from tensortap.engines.jax.recording.recorder import Recorder
from tensortap.engines.jax.tensors import host_array
from tensortap.engines.session.block import Monitor
from tensortap.pill import kinds_of_elements
from tensortap.records import Circumstances

__all__ = ["Again", "FollowedSession"]

log = logging.getLogger("tensortap.hooks")


class FollowedSession(LoopSession):
    """A session whose recorder hears of calls through the follower."""

    recorder: Recorder | None = None

    @contextmanager
    def listening(self, recorder: Recorder) -> Iterator[None]:
        """Keep the recorder for whoever hears of the calls."""
        self.recorder = recorder
        try:
            yield
        finally:
            self.recorder = None


class Again:
    """Executes bad calls again.

    Args:
        session: of the program.
        monitor: with the hooks that record.
    """

    def __init__(self, session: FollowedSession, monitor: Monitor) -> None:
        self._session = session
        self._monitor = monitor

    def find(self, pending: Pending, bad: Mapping[int, int], has_steps: bool) -> None:
        """Find what made the results of a call bad.

        Args:
            pending: the call.
            bad: kinds of bad values by place of the result.
            has_steps: whether the program has been seen to train.
        """
        # A program that updates its parameters outside of compiled code has steps, too: calls that work out gradients.
        works_out_gradients = not has_steps and pending.function.program.has_gradients
        before, self._session.global_step = self._session.global_step, 0
        step = pending.number if works_out_gradients else pending.step
        circumstances = Circumstances(
            trains=pending.function.family.trains or works_out_gradients or None,
            counts_steps=has_steps or works_out_gradients,
        )
        try:
            if pending.call.is_destroyed:
                with self._run(step, circumstances) as recorder:
                    recorder.look_at_results(pending.call, bad, {"donated": True})
                return
            with self._run(step, circumstances) as recorder:
                recorder.called(pending.call)
                is_found = recorder.found_bad
            outputs = pending.function.program.outputs
            # A number that is returned as it is written, or an argument, is shown without taps.
            bad = {place: kinds for place, kinds in bad.items() if isinstance(outputs[place], Site)}
            if bad and not is_found and not pending.is_shared:
                with self._run(step, circumstances) as recorder:
                    told = "Executed once more, with taps, it did not; nor did any operation, executed one by one."
                    try:
                        recorder.look_op_by_op(pending.call)
                        if recorder.found_bad:
                            told = "Executed once more, with taps, it did not, but it did operation by operation."
                        else:
                            repeats = {"repeats": _repeats(pending.call)}
                            recorder.look_at_results(pending.call, bad, repeats)
                    except Exception:
                        log.debug("cannot be executed operation by operation", exc_info=True)
                        told = "Its operations could be looked at neither with taps nor one by one."
                        recorder.look_at_results(pending.call, bad, {})
                name = pending.function.name
                log.warning("%s returned NaN or infinities at step %d. %s", name, pending.step, told)
        finally:
            self._session.global_step = before

    @contextmanager
    def _run(self, step: int, circumstances: Circumstances) -> Iterator[Any]:
        self._session.global_step = step
        self._session.circumstances = circumstances
        # What is executed again may be bad: JAX's own checks are for what the program executes.
        with calls.unheard(), jax.debug_nans(False), jax.debug_infs(False), self._monitor.run():
            assert self._session.recorder is not None
            yield self._session.recorder


def _repeats(call: Call) -> bool:
    """Whether the executable of the program, given the same, returns something bad again."""
    parameters = dict(call.parameters, donated_invars=(False,) * len(call.donated))
    results = calls.execute(call.arguments, parameters)
    arrays = (host_array(each) for each in results)
    return any(
        array is not None and np.issubdtype(array.dtype, np.inexact) and kinds_of_elements(array)
        for array in arrays
    )
