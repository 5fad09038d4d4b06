"""Following a TensorFlow program that nobody changed, for `tensortap run`.

A run is a call of `tf.compat.v1.Session.run` with side effects, or a call of a `tf.function` that writes to variables:
a training step, also where Keras calls it for a batch. Calls inside of calls, and inside of what is being traced,
belong to the outermost. Functions that write to nothing are left alone.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
from tensorflow.python.client.session import BaseSession
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from tensortap.engines.tensorflow.functions import Functions
from tensortap.engines.tensorflow.guarded_runs import GuardedRuns
from tensortap.engines.tensorflow.hosting import HostedRun
from tensortap.engines.tensorflow.session import session_of
from tensortap.engines.tensorflow.tapes import follow_tapes
from tensortap.engines.tensorflow.unseen import Unseen
from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.seam.options import RunMetadata, RunOptions
from tensortap.seam.structure import leaves

__all__ = ["Follower", "follow"]

log = logging.getLogger("tensortap.hooks")

_v1 = tf.compat.v1
_EFFECTS = (
    "Assign",
    "Apply",
    "ResourceApply",
    "ResourceSparseApply",
    "SparseApply",
    "Scatter",
    "ResourceScatter",
)


class Follower:
    """Makes runs of what a program executes, and has each of them watched."""

    def __init__(self, watch: Any) -> None:
        self._watch = watch
        self._functions = Functions()
        self._thread = threading.local()
        self._given_up = False
        self._effects: dict[tuple[int, ...], bool] = {}
        self._guarded = GuardedRuns(watch)
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._trains: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._unseen = Unseen(watch.seen)
        self._leave_tapes: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Learn of runs and calls from now on."""
        follower = self
        run: Any = BaseSession.run
        call: Any = polymorphic_function.Function.__call__

        @functools.wraps(run)
        def followed_run(
            session: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
        ) -> Any:
            if not follower._is_wanted(lambda: follower._has_effects(session, fetches)):
                return run(session, fetches, feed_dict, options, run_metadata)
            if not follower._guarded.watches_next():
                ours = session_of(session)
                return follower._unwatched(
                    ours, lambda merged: run(session, fetches, feed_dict, merged, run_metadata), options
                )
            return follower._session_run(run, session, fetches, feed_dict, options, run_metadata)

        @functools.wraps(call)
        def followed_call(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not follower._is_wanted(lambda: follower._may_train(function)):
                return call(function, *args, **kwargs)
            if function in follower._trains and not follower._guarded.watches_next():
                return follower._unwatched(follower._functions, lambda _: call(function, *args, **kwargs))
            return follower._function_call(functools.partial(call, function), function, args, kwargs)

        self._replaced = [
            (BaseSession, "run", followed_run, run),
            (polymorphic_function.Function, "__call__", followed_call, call),
        ]
        for owner, name, ours, _ in self._replaced:
            setattr(owner, name, ours)
        self._leave_tapes = follow_tapes()
        self._unseen.install()

    def end(self, error: BaseException | None = None) -> None:
        """The program is over, or about to end by an exception; what comes after is not watched."""
        self._given_up = True
        for owner, name, ours, theirs in self._replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, theirs)
        leave, self._leave_tapes = self._leave_tapes, lambda: None
        leave()
        self._unseen.end()

    # --- what is a run -----------------------------------------------------------------------------

    def _is_wanted(self, is_run: Callable[[], bool]) -> bool:
        """Whether to make a run of a call: not inside of another, and not while we look at something ourselves."""
        if self._given_up or getattr(self._thread, "busy", False):
            return False
        self._thread.busy = True
        try:
            return is_run()
        except Exception:
            self._give_up()
            return False
        finally:
            self._thread.busy = False

    def _has_effects(self, session: Any, fetches: Any) -> bool:
        """Whether what is fetched writes to a variable, besides initialising it."""
        graph = session.graph
        ops = [_op_of(graph, each) for each in leaves(fetches)]
        key = (id(graph), graph.version, *(id(op) for op in ops))
        known = self._effects.get(key)
        if known is None:
            if len(self._effects) > 1000:
                self._effects.clear()
            known = self._effects[key] = _writes(op for op in ops if op is not None)
        return known

    def _may_train(self, function: Any) -> bool:
        if not tf.executing_eagerly():  # it is being traced into another one
            return False
        if function._jit_compile:
            self._unseen.compiled(function)
        if function._run_functions_eagerly:
            return False
        known = self._trains.get(function)
        if known is None and function._list_all_concrete_functions():
            known = self._trains[function] = self._functions.graph.add(function)
        return known is not False

    # --- runs --------------------------------------------------------------------------------------

    def _session_run(
        self, run: Any, session: Any, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any
    ) -> Any:
        self._thread.busy = True
        try:
            hosted, asked, merged = None, {}, options
            try:
                ours = session_of(session)
                assert ours is not None
                original = SessionRunArgs(fetches, feed_dict)
                hosted = HostedRun(ours, SimpleNamespace(original_args=original, session=session))
                merged = _v1.RunOptions()
                if options is not None:
                    merged.CopyFrom(options)
                for place, hook in enumerate(self._watch.hooks):
                    args = hook.before_run(hosted.context)
                    theirs = None if args is None else hosted.ask(hook, args)
                    if theirs is not None:
                        asked[str(place)] = theirs.fetches or []
                        if theirs.options is not None:
                            merged.MergeFrom(theirs.options)
            except Exception:
                self._give_up()
                merged = options
            metadata = run_metadata if run_metadata is not None else _v1.RunMetadata()
            try:
                results = run(session, {"caller": fetches, **asked}, feed_dict, merged, metadata)
            except BaseException as error:
                if hosted is not None:
                    self._attempt(functools.partial(hosted.finish, error))
                raise
            self._attempt(lambda: self._after_session_run(hosted, results, merged, metadata))
        finally:
            self._thread.busy = False
        self._stop_if_bad()
        return results["caller"]

    def _after_session_run(self, hosted: Any, results: Any, options: Any, metadata: Any) -> None:
        if hosted is None:
            return
        for place, hook in enumerate(self._watch.hooks):
            theirs = SimpleNamespace(results=results.get(str(place)), options=options, run_metadata=metadata)
            hook.after_run(hosted.context, hosted.values_for(hook, theirs))
        hosted.context.succeeded()
        hosted.context.session.count_run()
        self._watch.seen.steps += 1
        self._guarded.was_watched()

    def _function_call(self, call: Callable[..., Any], function: Any, args: Any, kwargs: Any) -> Any:
        self._thread.busy = True
        run: Any = None
        context = SessionRunContext(SessionRunArgs(getattr(function, "_name", None)), self._functions)
        try:
            try:
                options = RunOptions()
                for hook in self._watch.hooks:
                    asked = hook.before_run(context)
                    if asked is not None and asked.options is not None:
                        options.merge_from(asked.options)
                if options.debug_options.debug_tensor_watch_opts:
                    if self._trains.get(function) is None:
                        function.get_concrete_function(*args, **kwargs)
                        self._trains[function] = self._functions.graph.add(function)
                    if self._trains[function]:
                        self._functions.graph.add(function)
                        run = self._functions.begin_watched(getattr(function, "_name", ""), (), options)
                        run.open()
            except Exception:
                self._give_up()
                run = None
            try:
                if run is None:
                    return call(*args, **kwargs)
                with run.functions():
                    result = call(*args, **kwargs)
            except BaseException as error:
                if run is not None:
                    self._attempt(functools.partial(run.finish, error))
                raise
            self._attempt(lambda: self._after_call(function, run, context))
        finally:
            self._thread.busy = False
        self._stop_if_bad()
        return result

    def _after_call(self, function: Any, run: Any, context: Any) -> None:
        self._functions.graph.add(function)  # it may have been traced again
        run.finish()
        before = self._functions.global_step
        if self._functions.graph.trains:
            self._functions.global_step += 1
            self._watch.seen.steps += 1
        metadata = RunMetadata(nodes=run.nodes)
        for hook in self._watch.hooks:
            hook.after_run(context, SessionRunValues(before, RunOptions(), metadata))
        self._guarded.was_watched()

    def _unwatched(self, owner: Any, execute: Callable[[Any], Any], options: Any = None) -> Any:
        """A run that the budget has no time for; it is guarded."""
        self._thread.busy = True
        try:
            result = self._guarded.run(owner, execute, options, self._give_up)
        finally:
            self._thread.busy = False
        if owner is not self._functions or self._functions.graph.trains:
            self._watch.seen.steps += 1
        self._stop_if_bad()
        return result

    def _stop_if_bad(self) -> None:
        """End the program if that is wanted and there is reason to."""
        watch = self._watch
        if watch.options.stop and not self._given_up and watch.is_settled() and watch.found.is_set():
            self._given_up = True
            watch.stopping()
            raise SystemExit(1)

    def _attempt(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception:
            self._give_up()

    def _give_up(self) -> None:
        """A failure of ours: the program goes on without being watched."""
        self._given_up = True
        log.warning("tensortap failed to follow the program, which goes on unwatched.", exc_info=True)


def _op_of(graph: Any, fetch: Any) -> Any:
    try:
        element = graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True)
    except (TypeError, ValueError, KeyError):
        return None  # a structure that only TensorFlow knows
    return getattr(element, "op", element)


def _writes(ops: Iterable[Any]) -> bool:
    """Whether executing ops writes to a variable, besides giving it its first value."""
    waiting, seen = list(ops), set()
    initializers: set[int] | None = None
    while waiting:
        op = waiting.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        if initializers is None:
            collection = op.graph.get_collection(_v1.GraphKeys.GLOBAL_VARIABLES)
            initializers = {id(each.initializer) for each in collection}
        if op.type.startswith(_EFFECTS) and id(op) not in initializers:
            return True
        if id(op) not in initializers:
            waiting.extend(each.op for each in op.inputs)
            waiting.extend(op.control_inputs)
    return False


def follow(watch: Any) -> Follower:
    """Follow the program of this process from now on."""
    follower = Follower(watch)
    follower.install()
    return follower
