"""Our hooks in monitored sessions of TensorFlow's own, and TensorFlow's sessions in ours.

TensorFlow calls a hook with its own sessions, contexts and values, and owns the run between `before_run` and
`after_run`. A hook of ours gets our session, context and values instead; what it asks for is resolved as in our
sessions, and given to TensorFlow as tensors, ops and protobuf messages. A watched run is armed in `before_run`. It ends
in the first `after_run`; if that is never called, because the run failed, in the next `before_run` or when the session
is closed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tensortap.engines.tensorflow.graph import TensorFlowGraph, graph_of
from tensortap.engines.tensorflow.measuring import profile_of
from tensortap.engines.tensorflow.options import options_to_message
from tensortap.engines.tensorflow.request import Outcome, Request, resolve
from tensortap.engines.tensorflow.run import WatchedRun, wants_values
from tensortap.engines.tensorflow.session import Session, raw_session_of, session_of
from tensortap.errors import FeedError
from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.hooks.hook import tell_hooks_of_error
from tensortap.seam.options import RunMetadata, RunOptions, TraceLevel

__all__ = ["HostedRun", "call", "default_graph", "session_of"]

_v1 = tf.compat.v1
_STAY = "_tensortap_stay"
_CLEAN = (tf.errors.OutOfRangeError, StopIteration)


def default_graph() -> TensorFlowGraph:
    """What stands for TensorFlow's default graph."""
    return graph_of(_v1.get_default_graph())


def call(hook: Any, method: Callable[..., Any], moment: str, args: tuple[Any, ...]) -> Any:
    """Call one moment of a hook that TensorFlow has called."""
    if moment == "begin":
        with default_graph().as_default():
            return method(hook)
    if moment in ("before_run", "after_run"):
        stay = _Stay.of(args[0].session)
        return (
            stay.before_run(hook, method, args[0])
            if moment == "before_run"
            else stay.after_run(hook, method, *args)
        )
    stay = _Stay.of(args[0])
    stay.settle()
    stay.hooks.setdefault(id(hook), hook)
    if moment == "end":
        stay.hooks.pop(id(hook))
    with stay.session.graph.as_default():
        return method(hook, stay.session, *args[1:])


class HostedRun:
    """One run as TensorFlow calls it, and what our hooks want of it."""

    def __init__(self, session: Session, theirs: Any) -> None:
        self.theirs = theirs
        asked = theirs.original_args
        self.context = SessionRunContext(SessionRunArgs(asked.fetches, asked.feed_dict), session)
        self.requests: dict[int, Request] = {}
        self.metadata: RunMetadata | None = None
        self.options = RunOptions()
        self._watched: list[WatchedRun] = []  # one for each hook that watches
        self._session = session
        self._step: int | None = None
        self._is_guarded = False

    @property
    def step(self) -> int:
        """The global step before the run."""
        if self._step is None:
            self._step = self._session.global_step
        return self._step

    def ask(self, hook: Any, args: SessionRunArgs) -> Any:
        """What a hook adds to the run, as TensorFlow takes it."""
        request = resolve(self._session, [] if args.fetches is None else args.fetches, args.feed_dict)
        if request.state_feeds:
            raise FeedError(
                f"Variables cannot be fed by their names here: {', '.join(request.state_feeds)}. "
                "That needs a session of tensortap's around the run."
            )
        if args.fetches is not None:
            self.requests[id(hook)] = request
        if request.needs_step:
            _ = self.step  # as it is before the run
        message = None if args.options is None else self._message(args.options)
        return _v1.train.SessionRunArgs(request.fetches or None, request.feeds or None, message)

    def _message(self, options: RunOptions) -> Any:
        alone = RunOptions()
        alone.merge_from(options)
        self.options.merge_from(alone)
        message = options_to_message(alone)
        if not wants_values(alone):
            return message
        asked = self.theirs.original_args
        keys = [str(getattr(key, "name", key)) for key in asked.feed_dict or ()]
        run = self._session.begin_watched(asked.fetches, keys, alone)
        self._watched.append(run)
        run.open()
        return run.merged_into(message)

    def guarded(self, args: Any) -> Any:
        """What a hook adds to the run, and what makes it a guarded one if a hook has asked for that."""
        if self._is_guarded:
            return args
        options = self._session.with_guard(None)
        if options is None:
            return args
        self._is_guarded = True
        if args is None:
            return _v1.train.SessionRunArgs(None, None, options)
        merged = self._session.with_guard(args.options)
        return args._replace(options=merged)

    def finish(self, error: BaseException | None, native: Any = None) -> None:
        """The run is over."""
        for run in self._watched:
            run.finish(error, native)
            self._session.faults += run.faults

    def values_for(self, hook: Any, theirs: Any) -> SessionRunValues:
        """What the run gave to a hook."""
        if self.metadata is None:
            self.finish(None, theirs.run_metadata)
            self.metadata = RunMetadata(native=theirs.run_metadata)
            self.metadata.nodes[:] = self._watched[0].nodes if self._watched else []
            if self.options.trace_level > TraceLevel.NO_TRACE:
                self.metadata.profile = profile_of(theirs.run_metadata, self._session.graph)
        request = self.requests.get(id(hook))
        results = None
        if request is not None:
            state: Mapping[str, Any] = self._session.read(request)
            results = request.values(Outcome(theirs.results or [], state, self._step or 0))
        return SessionRunValues(results, self.options, self.metadata)


class _Stay:
    """Our hooks in one session of TensorFlow's."""

    def __init__(self, raw: Any, session: Session) -> None:
        self.session = session
        self.hooks: dict[int, Any] = {}
        self._run: HostedRun | None = None
        close = raw.close

        def closing() -> None:
            self.leave(sys.exc_info()[1])
            close()

        raw.close = closing  # the only moment at which a session tells that a run has failed

    @classmethod
    def of(cls, session: Any) -> _Stay:
        """That of a session."""
        raw = raw_session_of(session)
        known = getattr(raw, _STAY, None)
        if not isinstance(known, _Stay):
            found = session_of(raw)
            assert found is not None
            known = cls(raw, found)
            setattr(raw, _STAY, known)
        return known

    def before_run(self, hook: Any, method: Callable[..., Any], theirs: Any) -> Any:
        """Ask a hook what it wants of a run."""
        if self._run is None or self._run.theirs is not theirs:
            self.settle()
            self._run = HostedRun(self.session, theirs)
        self.hooks.setdefault(id(hook), hook)
        args = method(hook, self._run.context)
        return self._run.guarded(None if args is None else self._run.ask(hook, args))

    def after_run(self, hook: Any, method: Callable[..., Any], theirs: Any, values: Any) -> None:
        """Tell a hook what became of it."""
        run = self._run
        if run is None or run.theirs is not theirs:  # it was not asked, so it is told of nothing
            run = HostedRun(self.session, theirs)
        method(hook, run.context, run.values_for(hook, values))
        run.context.succeeded()
        if run.context.stop_requested:
            theirs.request_stop()

    def settle(self, error: BaseException | None = None) -> None:
        """A run that nobody has been told the end of is over."""
        run, self._run = self._run, None
        if run is not None and run.metadata is None:
            run.finish(error or RuntimeError("the run failed"))

    def leave(self, error: BaseException | None) -> None:
        """The session is closed."""
        self.settle(error)
        hooks, self.hooks = list(self.hooks.values()), {}
        if error is not None and not isinstance(error, _CLEAN):
            tell_hooks_of_error(hooks, self.session, error)
