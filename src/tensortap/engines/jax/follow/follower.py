"""Where the runs of a JAX program are that nobody changed, and which of its calls are executed with taps.

By default none is: a sentinel looks at what calls return, and a call that returned something bad is executed once more,
with taps, as a run of its own. When single tensors, steps or values are asked for, every call that trains ends a run,
and all calls are executed with taps.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax._src import config as jax_config

from tensortap.engines.jax import calls
from tensortap.engines.jax.calls import Call
from tensortap.engines.jax.follow.functions import Function, Functions
from tensortap.engines.jax.follow.sentinel import Pending, Sentinel, copied
from tensortap.engines.jax.lines import stack_from
from tensortap.engines.jax.loop import LoopSession
from tensortap.engines.jax.recording.recorder import Recorder
from tensortap.engines.jax.tensors import host_array
from tensortap.engines.session.block import Monitor
from tensortap.pill import kinds_of_elements
from tensortap.records import Circumstances

__all__ = ["Follower"]

log = logging.getLogger("tensortap.hooks")

_MOST_REPEATED = 32
"""Calls that are executed again: a program that returns infinities in ever new places must not be held up by us."""


class _FollowedSession(LoopSession):
    """A session whose recorder hears of calls through the follower."""

    recorder: Recorder | None = None

    @contextmanager
    def listening(self, recorder: Recorder) -> Iterator[None]:
        self.recorder = recorder
        try:
            yield
        finally:
            self.recorder = None


class Follower:
    """Hears of all calls of a program."""

    def __init__(self, watch: Any) -> None:
        self._watch = watch
        self._session = _FollowedSession()
        self._monitor = Monitor(self._session, watch.hooks, 1.0)
        self._functions = Functions()
        self._sentinel = Sentinel()
        self._thread = threading.get_ident()
        self._repeated = 0
        self._block: Any = None
        self._given_up = False
        self._is_busy = False
        self._stops = False
        options = watch.options
        self._watches_all = bool(
            options.steps is not None
            or options.every is not None
            or options.keep != "samples"
            or options.condition is not None
            or any(not op.startswith("DebugNumericSummary") for op in options.watch.debug_ops)
            or not options.watch.pattern.is_empty
            or len(watch.hooks) > 1
        )
        for name, given in (("--skip-bad", options.skip_bad), ("--budget", options.budget is not None)):
            if given:
                log.warning("%s has no effect on programs of JAX.", name)

    def install(self) -> None:
        """Hear of calls from now on."""
        calls.listen(self)

    def end(self, error: BaseException | None = None) -> None:
        """The program is over; wait for the last verdicts."""
        if self._given_up:
            return
        self._attempt(self._settle, True)
        if self._block is not None:
            self._attempt(self._end_run, error)
        self._attempt(self._monitor.close)
        calls.stop_listening(self)
        self._given_up = True

    # --- what the program does ---------------------------------------------------------------------

    def called(self, call: Call) -> Sequence[Any]:
        """Execute a call of the program, and look at what it returns."""
        if (
            self._given_up
            or self._is_busy
            or jax_config.debug_nans.value
            or threading.get_ident() != self._thread
            or not calls.is_concrete(call.arguments)
        ):
            return call.go_on()
        try:
            function = self._functions.of(call.jaxpr, str(call.parameters.get("name", "")))
            trains = self._counts(function, call)
        except Exception:
            self._give_up()
            return call.go_on()
        results = self._watched(call) if self._watches_all else self._guarded(function, call)
        function.calls += 1
        if trains:
            function.returned(results)
            self._watch.seen.steps += 1
            if self._block is not None:
                self._attempt(self._end_run, None)
        elif not function.is_library:
            function.returned(results)
        self._stop_if_bad()
        return results

    def _counts(self, function: Function, call: Call) -> bool:
        """Whether a call is a step: it is given what it returned before, updated."""
        if function.is_library or not function.calls:
            return function.trains
        takes_its_results = function.takes_its_results(call.arguments)
        if function.trains and not takes_its_results and not function.is_sure:
            function.trains = False  # its results only look like what it is given, as gradients do
            self._watch.seen.steps -= function.calls
        elif takes_its_results and not function.trains:
            function.trains = True
            self._watch.seen.steps += function.calls  # those before were steps, too
        function.is_sure = function.is_sure or takes_its_results
        return function.trains

    # --- results are looked at -----------------------------------------------------------------------

    def _guarded(self, function: Function, call: Call) -> Sequence[Any]:
        kept: list[Any] | None = None
        try:
            kept = copied(call.arguments, call.donated) if any(call.donated) else list(call.arguments)
            if function.is_library:
                call.stack = stack_from(sys._getframe(1))
        except Exception:
            self._give_up()
        results = call.go_on()
        if kept is not None:
            call.arguments = kept
            self._attempt(self._look, function, call, results)
        return results

    def _look(self, function: Function, call: Call, results: Sequence[Any]) -> None:
        self._watch.seen.checked += 1
        self._sentinel.look(function, call, results, self._watch.seen.steps, True)
        self._settle(self._watch.options.stop)

    def _settle(self, wait: bool) -> None:
        for pending, kinds in self._sentinel.settled(wait):
            known = pending.function.known_bad
            news = {place for place, found in kinds.items() if found & ~known.get(place, 0)}
            for place, found in kinds.items():
                known[place] = known.get(place, 0) | found
            if news and not self._comes_of_bad(pending):
                self._repeat(pending)

    def _comes_of_bad(self, pending: Pending) -> bool:
        """Whether there is nothing to find in a call: it was given what a bad one had returned."""
        if self._repeated >= _MOST_REPEATED or self._watch.found.is_set():
            return True
        if not pending.function.is_library:
            return False
        arrays = (
            host_array(each) for each in pending.call.arguments if isinstance(each, (jax.Array, np.ndarray))
        )
        return any(array is not None and kinds_of_elements(array) for array in arrays)

    def _repeat(self, pending: Pending) -> None:
        """Execute a call again, with taps, as a run of its own."""
        self._repeated += 1
        session = self._session
        before = session.global_step
        # A program that updates its parameters outside of compiled code has steps, too: calls that work out gradients.
        has_steps = self._watch.seen.steps > 0
        works_out_gradients = not has_steps and pending.function.program.has_gradients
        session.global_step = pending.number if works_out_gradients else pending.step
        session.circumstances = Circumstances(
            trains=pending.function.trains or works_out_gradients or None,
            counts_steps=has_steps or works_out_gradients,
        )
        self._is_busy = True
        try:
            with self._monitor.run():
                assert session.recorder is not None
                session.recorder.called(pending.call)
                is_seen = session.recorder.found_bad
            if not is_seen:
                log.warning(
                    "%s returned NaN or infinities at step %d, and executed once more, with taps, it did not: what is "
                    "fused with what differs between the two.",
                    pending.function.name,
                    pending.step,
                )
        finally:
            self._is_busy = False
            session.global_step = before

    # --- everything is watched -----------------------------------------------------------------------

    def _watched(self, call: Call) -> Sequence[Any]:
        if self._block is None:
            self._attempt(self._begin_run)
        recorder = self._session.recorder
        if recorder is None:  # a run that is not watched, or no more
            return call.go_on()
        self._is_busy = True
        try:
            return recorder.called(call)
        finally:
            self._is_busy = False

    def _begin_run(self) -> None:
        self._session.global_step = self._watch.seen.steps
        self._session.circumstances = Circumstances(trains=True)
        block = self._monitor.run()
        block.__enter__()
        self._block = block

    def _end_run(self, error: BaseException | None) -> None:
        block, self._block = self._block, None
        if error is None:
            block.__exit__(None, None, None)
        else:
            block.__exit__(type(error), error, error.__traceback__)

    # --- ends --------------------------------------------------------------------------------------

    def _stop_if_bad(self) -> None:
        watch = self._watch
        if watch.options.stop and not self._stops and watch.is_settled() and watch.found.is_set():
            self._stops = True
            watch.stopping()
            raise SystemExit(1)

    def _attempt(self, action: Any, *arguments: Any) -> None:
        """Do something of ours; if it fails, the program goes on without being watched."""
        if self._given_up:
            return
        try:
            action(*arguments)
        except Exception:
            self._give_up()

    def _give_up(self) -> None:
        self._given_up = True
        calls.stop_listening(self)
        log.warning("Watching has failed; the program goes on without tensortap.", exc_info=True)
