"""Where the runs of a JAX program are that nobody changed, and which of its calls are executed with taps.

By default none is: a sentinel looks at what calls return, and a call that returned something bad is executed once more,
with taps, as a run of its own. When single tensors, steps or values are asked for, every call that trains ends a run,
and all calls are executed with taps.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.api_util import InternalFloatingPointError

from tensortap.engines.jax import calls
from tensortap.engines.jax.calls import Call
from tensortap.engines.jax.follow.again import Again, FollowedSession
from tensortap.engines.jax.follow.functions import Family, Function, Functions
from tensortap.engines.jax.follow.pending import Pending
from tensortap.engines.jax.follow.sentinel import Sentinel, jax_looks
from tensortap.engines.jax.lines import stack_from
from tensortap.engines.jax.tensors import host_array
from tensortap.engines.session.block import Monitor
from tensortap.pill import KIND_NAN, kinds_of_elements
from tensortap.records import Circumstances

__all__ = ["Follower"]

log = logging.getLogger("tensortap.hooks")

_MOST_REPEATED = 32
"""Calls that are executed again: a program that returns infinities in ever new places must not be held up by us."""

_RAISED_BY_CHECKS = (FloatingPointError, InternalFloatingPointError, RecursionError)
"""What JAX raises if it finds something bad itself; the last when it looks into a kernel."""

_MOST_SHARED = 2
"""The same for calls that several processes execute together."""


class Follower:
    """Hears of all calls of a program."""

    def __init__(self, watch: Any) -> None:
        self._watch = watch
        self._session = FollowedSession()
        self._monitor = Monitor(self._session, watch.hooks, 1.0)
        self._again = Again(self._session, self._monitor)
        self._functions = Functions()
        self._sentinel = Sentinel()
        self._thread = self._recorded_thread = threading.get_ident()
        self._repeated = 0
        self._block: Any = None
        self._given_up = False
        self._stops = False
        self._lock = threading.RLock()
        """Held while something is noted, and never while the program executes a call."""
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
        self._is_told = False

    def install(self) -> None:
        """Hear of calls from now on."""
        calls.listen(self)

    def end(self, error: BaseException | None = None) -> None:
        """The program is over; wait for the last verdicts."""
        if self._given_up:
            return
        if self._block is not None:
            self._attempt(self._end_run, error)
        self._attempt(self._settle, True)
        self._attempt(self._monitor.close)
        calls.stop_listening(self)
        self._sentinel.close()
        self._given_up = True

    # --- what the program does ---------------------------------------------------------------------

    def called(self, call: Call) -> Sequence[Any]:
        """Execute a call of the program, and look at what it returns."""
        if self._given_up or not calls.is_concrete(call.arguments):
            return call.go_on()
        if not self._is_told:
            self._tell_what_has_no_effect()
        try:
            with self._lock:
                function = self._functions.of(call.jaxpr, str(call.parameters.get("name", "")))
                trains = not function.is_library and self._counts(function.family, call)
        except Exception:
            self._give_up()
            return call.go_on()
        is_watched = self._watches_all and self._is_for_recorder()
        results = self._watched(call) if is_watched else self._guarded(function, call)
        with self._lock:
            function.family.calls += 1
            if trains:
                self._watch.seen.steps += 1
                if is_watched and self._block is not None:
                    self._attempt(self._end_run, None)
            if not function.is_library:
                function.family.returned(id(function), results)
        self._stop_if_bad()
        return results

    def _tell_what_has_no_effect(self) -> None:
        """Said at the first call: a program of another framework may only import JAX, as Keras does."""
        self._is_told = True
        options = self._watch.options
        if options.skip_bad:
            log.warning(
                "--skip-bad has no effect on programs of JAX, whose updates are inside compiled code: "
                "optax.apply_if_finite(optimizer, n) leaves out bad ones."
            )
        if not options.copy_donated and self._watches_all:
            log.warning(
                "--no-copies has no effect: single tensors, values or steps are asked for, and runs that are watched "
                "whole keep their arguments."
            )
        if options.budget is not None:
            log.warning(
                "--budget has no effect on programs of JAX: %s",
                "every run is watched, because single tensors, values or steps are asked for."
                if self._watches_all
                else "they run their own code, only what calls return is looked at, and no run is left out.",
            )

    def _is_for_recorder(self) -> bool:
        """Whether calls of this thread belong to the run that is recorded: it began it, or there is none."""
        with self._lock:
            if self._block is None:
                self._recorded_thread = threading.get_ident()
            return self._recorded_thread == threading.get_ident()

    def _counts(self, family: Family, call: Call) -> bool:
        """Whether a call is a step: it is given what it returned before, updated."""
        if not family.calls:
            return family.trains
        takes_its_results = family.takes_its_results(call.arguments)
        if family.trains and not takes_its_results and not family.is_sure:
            family.trains = False  # its results only look like what it is given, as gradients do
            self._watch.seen.steps -= family.calls
        elif takes_its_results and not family.trains:
            family.trains = True
            self._watch.seen.steps += family.calls  # those before were steps, too
        family.is_sure = family.is_sure or takes_its_results
        return family.trains

    # --- results are looked at -----------------------------------------------------------------------

    def _guarded(self, function: Function, call: Call) -> Sequence[Any]:
        kept: list[Any] | None = None
        try:
            is_given = any(call.donated)
            can_repeat = not is_given or self._watch.options.copy_donated
            with self._lock:
                kept = self._sentinel.keep(function, call, can_repeat)
                if is_given and can_repeat:
                    kept = self._sentinel.copied(kept, call)
            # What is destroyed takes no memory, and what could not be reused is still there when it is needed.
            if function.is_library or not can_repeat:
                call.stack = stack_from(sys._getframe(1))
        except Exception:
            self._give_up()
        try:
            results = call.go_on()
        except _RAISED_BY_CHECKS as error:
            # JAX looks itself (jax_debug_nans), and does not let bad results out.
            self._sentinel.failed()
            if kept is not None and (jax_looks() or not isinstance(error, RecursionError)):
                call.arguments = kept
                self._attempt(self._raised, function, call)
            raise
        except BaseException:
            self._sentinel.failed()
            raise
        if kept is not None:
            call.arguments = kept
            self._attempt(self._look, function, call, results)
        return results

    def _look(self, function: Function, call: Call, results: Sequence[Any]) -> None:
        with self._lock:
            self._watch.seen.checked += 1
            self._sentinel.look(function, call, results, self._watch.seen.steps)
            self._settle(self._watch.options.stop)

    def _raised(self, function: Function, call: Call) -> None:
        with self._lock:
            self._settle(True)
            if self._block is not None:
                return
            pending = Pending(function, call, (), self._watch.seen.steps, function.family.calls, 0)
            # The program may end with it, so what it was given from outside is told, too.
            if not self._repeated or not self._comes_of_bad(pending):
                self._repeat(pending, dict.fromkeys(function.floats, KIND_NAN))

    def _settle(self, wait: bool) -> None:
        with self._lock:
            if self._block is not None:
                return  # calls of other threads: when the run that is recorded is over
            for pending, kinds in self._sentinel.settled(wait):
                known = pending.function.known_bad
                news = {place for place, found in kinds.items() if found & ~known.get(place, 0)}
                for place, found in kinds.items():
                    known[place] = known.get(place, 0) | found
                if news and not self._comes_of_bad(pending):
                    self._repeat(pending, kinds)

    def _comes_of_bad(self, pending: Pending) -> bool:
        """Whether there is nothing to find in a call: it was given what a bad one had returned."""
        if pending.is_shared:
            return self._repeated >= _MOST_SHARED  # when the answer is found differs from process to process
        if self._repeated >= _MOST_REPEATED or self._watch.found.is_set():
            return True
        if not pending.function.is_library:
            return False
        arrays = (
            host_array(each) for each in pending.call.arguments if isinstance(each, (jax.Array, np.ndarray))
        )
        return any(array is not None and kinds_of_elements(array) for array in arrays)

    def _repeat(self, pending: Pending, bad: Mapping[int, int]) -> None:
        self._repeated += 1
        try:
            self._again.find(pending, bad, has_steps=self._watch.seen.steps > 0)
        except Exception:
            log.warning(
                "%s returned NaN or infinities at step %d, and could not be executed again to find out why.",
                pending.function.name,
                pending.step,
                exc_info=True,
            )

    # --- everything is watched -----------------------------------------------------------------------

    def _watched(self, call: Call) -> Sequence[Any]:
        if self._block is None:
            self._attempt(self._begin_run)
        recorder = self._session.recorder
        if recorder is None:  # a run that is not watched, or no more
            return call.go_on()
        with calls.unheard():
            return recorder.called(call)

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
        self._settle(False)

    # --- ends --------------------------------------------------------------------------------------

    def _stop_if_bad(self) -> None:
        watch = self._watch
        if threading.get_ident() != self._thread:
            return  # the program is ended by the thread that began it
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
        self._sentinel.close()
        log.warning("Watching has failed; the program goes on without tensortap.", exc_info=True)
