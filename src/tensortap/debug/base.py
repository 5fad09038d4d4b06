"""The wrapper session: a session around a session, that decides for each run whether and how to watch it.

The life of a wrapper, told in order:

1. It is constructed around an engine session or a `MonitoredSession`. `on_session_init(request)` is called
   once.
2. Somebody calls `run`, or a function made by `make_callable`. The run is counted. If there is nothing to
   fetch, or the thread is filtered out, the wrapped session runs it as if there were no wrapper.
3. Otherwise `on_run_start(request)` says what to do: watch the run and send records to URLs, measure it, or
   leave it alone.
4. The wrapped session executes the run.
5. `on_run_end(request)` learns what was done and how it ended. Back to 2.

The wrapper never closes the wrapped session unless `close()` is called, not even when it is collected.
"""

from __future__ import annotations

import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from tensortap.debug.actions import (
    OnRunEndRequest,
    OnRunEndResponse,
    OnRunStartAction,
    OnRunStartRequest,
    OnRunStartResponse,
    OnSessionInitAction,
    OnSessionInitRequest,
    OnSessionInitResponse,
)
from tensortap.debug.threads import ThreadFilter
from tensortap.errors import OpError
from tensortap.hooks.monitored import MonitoredSession
from tensortap.seam.base import default_session, is_session
from tensortap.seam.native import as_engine_session
from tensortap.seam.options import RunMetadata, RunOptions, TraceLevel
from tensortap.seam.structure import is_empty
from tensortap.watch.match import watch_run

__all__ = ["BaseDebugWrapperSession", "WrappedStepContext", "check_wrappable"]

log = logging.getLogger("tensortap.debug")


class BaseDebugWrapperSession(ABC):
    """Base of all wrapper sessions; a subclass implements the three `on_…` methods.

    Args:
        sess: an engine session, such as `tensortap.torch.Session`, or a `MonitoredSession`.
        thread_name_filter: regular expression, matched at the start of a thread's name, for the threads whose
            runs are watched; the runs of other threads pass through. None means all threads.
        pass_through_operrors: raise an `OpError` of a watched run. By default it is captured: `on_run_end`
            gets it, a warning is logged, and `run` *returns* it.

    Raises:
        TypeError: `sess` is neither, for instance another wrapper.

    >>> import tensortap as tt
    >>> class Quiet(BaseDebugWrapperSession):
    ...     def on_session_init(self, request):
    ...         return OnSessionInitResponse(OnSessionInitAction.PROCEED)
    ...     def on_run_start(self, request):
    ...         return OnRunStartResponse(OnRunStartAction.NON_DEBUG_RUN, [])
    ...     def on_run_end(self, request):
    ...         return OnRunEndResponse()
    >>> session = Quiet(tt.torch.Session(lambda x: {"y": 2 * x}))
    >>> session.run("y", {"x": 4}), session.run_call_count
    (8, 1)
    """

    def __init__(
        self,
        sess: Any,
        thread_name_filter: str | None = None,
        pass_through_operrors: bool | None = False,
    ) -> None:
        check_wrappable(sess)
        self._given = sess
        self._sess = as_engine_session(sess)
        self._thread_filter = ThreadFilter(thread_name_filter)
        self._pass_through_operrors = bool(pass_through_operrors)
        self._run_call_count = 0
        self._count_lock = threading.Lock()
        self._default: list[AbstractContextManager[Any]] = []
        response = self.on_session_init(OnSessionInitRequest(sess))
        _check_response(response, OnSessionInitResponse, "on_session_init")
        if response.action == OnSessionInitAction.REMOTE_INSTR_LOOP:
            raise NotImplementedError("The action REMOTE_INSTR_LOOP is not implemented.")
        if response.action != OnSessionInitAction.PROCEED:
            raise ValueError(f"Invalid OnSessionInitAction value: {response.action!r}.")

    # --- what a session is -------------------------------------------------------------------------

    @property
    def graph(self) -> Any:
        """The graph of the wrapped session."""
        return self._sess.graph

    @property
    def graph_def(self) -> Any:
        """The graph as a `GraphDef` message."""
        return self.graph.as_graph_def()

    @property
    def sess_str(self) -> str:
        """Which runtime the wrapped session speaks to; empty for this process."""
        return getattr(self._sess, "sess_str", "")

    @property
    def session(self) -> Any:
        """The wrapped session."""
        return self._given

    @property
    def run_call_count(self) -> int:
        """How many runs were asked for so far, watched or not."""
        return self._run_call_count

    def increment_run_call_count(self) -> int:
        """Count one run; the new count."""
        with self._count_lock:
            self._run_call_count += 1
            return self._run_call_count

    def list_devices(self, *args: Any, **kwargs: Any) -> Any:
        """Those of the wrapped session."""
        return self._forward("list_devices", *args, **kwargs)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Forwarded to the wrapped session."""
        return self._forward("reset", *args, **kwargs)

    def close(self) -> None:
        """Close the wrapped session."""
        self._sess.close()

    def as_default(self) -> AbstractContextManager[Any]:
        """Make the wrapper the default session of the thread, so that what runs through it is watched."""
        through = getattr(self._sess, "default_through", None)  # the framework's default session as well
        context: AbstractContextManager[Any] = through(self) if callable(through) else default_session(self)
        return context

    def __enter__(self) -> Self:
        context = self.as_default()
        context.__enter__()
        self._default.append(context)
        return self

    def __exit__(self, exec_type: Any, exec_value: Any, exec_tb: Any) -> None:
        self._default.pop().__exit__(exec_type, exec_value, exec_tb)

    def should_stop(self) -> bool:
        """That of the wrapped session, if it is a monitored one.

        Raises:
            ValueError: it is not.
        """
        should_stop = getattr(self._sess, "should_stop", None)
        if not callable(should_stop):
            raise ValueError(
                f"The wrapped {type(self._sess).__name__} has no should_stop(); wrap a MonitoredSession."
            )
        return bool(should_stop())

    def partial_run_setup(self, fetches: Any, feeds: Any = None) -> Any:
        """Not implemented, as in the original."""
        raise NotImplementedError("partial_run_setup is not implemented for debug wrapper sessions.")

    def partial_run(self, handle: Any, fetches: Any, feed_dict: Any = None) -> Any:
        """Not implemented, as in the original."""
        raise NotImplementedError("partial_run is not implemented for debug wrapper sessions.")

    # --- running -----------------------------------------------------------------------------------

    def run(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        callable_runner: Callable[..., Any] | None = None,
        callable_runner_args: Sequence[Any] | None = None,
    ) -> Any:
        """Run the wrapped session, watched as `on_run_start` says.

        Args:
            fetches: as for the wrapped session.
            feed_dict: as for the wrapped session.
            options: as for the wrapped session; never modified.
            run_metadata: as for the wrapped session.
            callable_runner: a function made by the wrapped session's `make_callable`, to be run instead of
                `fetches`.
            callable_runner_args: its arguments.

        Returns:
            What the wrapped session returns; or the `OpError` that ended a watched run, unless
            `pass_through_operrors` was set.

        Raises:
            ValueError: an invalid action, or `callable_runner` together with `fetches` or `feed_dict`.
        """
        if callable_runner is not None and (fetches is not None or feed_dict is not None):
            raise ValueError(
                "callable_runner stands for fetches and feed_dict, so both of them must be None."
            )
        count = self.increment_run_call_count()

        def execute(options: RunOptions | None, metadata: RunMetadata | None) -> Any:
            if callable_runner is not None:
                return callable_runner(*(callable_runner_args or ()), options=options, run_metadata=metadata)
            return self._sess.run(fetches, feed_dict=feed_dict, options=options, run_metadata=metadata)

        if (callable_runner is None and is_empty(fetches)) or not self._thread_filter.matches():
            return execute(options, run_metadata)
        start = self.on_run_start(
            OnRunStartRequest(fetches, feed_dict, options, run_metadata, count, callable_runner is not None)
        )
        _check_response(start, OnRunStartResponse, "on_run_start")
        if start.action == OnRunStartAction.DEBUG_RUN:
            result, end = self._debug_run(execute, start, options, run_metadata, count)
        elif start.action == OnRunStartAction.PROFILE_RUN:
            result, end = self._profile_run(execute, start, options, run_metadata)
        elif start.action in (OnRunStartAction.NON_DEBUG_RUN, OnRunStartAction.INVOKE_STEPPER):
            if start.action == OnRunStartAction.INVOKE_STEPPER:
                self.invoke_node_stepper(None, restore_variable_values_on_exit=True)
            result, end = execute(options, run_metadata), OnRunEndRequest(start.action)
        else:
            raise ValueError(f"Invalid OnRunStartAction value: {start.action!r}.")
        _check_response(self.on_run_end(end), OnRunEndResponse, "on_run_end")
        return result

    def _debug_run(
        self,
        execute: Callable[..., Any],
        start: OnRunStartResponse,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
        count: int,
    ) -> tuple[Any, OnRunEndRequest]:
        watched = _copied(options)
        metadata = RunMetadata() if run_metadata is None else run_metadata
        watch_run(watched, start.watch, start.debug_urls, reset_disk_byte_usage=count == 1)
        error: OpError | None = None
        try:
            result = execute(watched, metadata)
        except OpError as raised:
            if self._pass_through_operrors:
                raise
            result = error = raised
            log.warning(
                "Run %d failed at %s: %s. The error is returned by run(), not raised; make the session with "
                "pass_through_operrors=True to have it raised.",
                count,
                raised.node_name or "an unknown op",
                raised,
            )
        return result, OnRunEndRequest(start.action, metadata, error, self.graph)

    def _profile_run(
        self,
        execute: Callable[..., Any],
        start: OnRunStartResponse,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> tuple[Any, OnRunEndRequest]:
        traced = _copied(options)
        traced.trace_level = TraceLevel.FULL_TRACE
        metadata = RunMetadata() if run_metadata is None else run_metadata
        result = execute(traced, metadata)
        return result, OnRunEndRequest(start.action, metadata, None, self.graph)

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """A function that runs `fetches` through the wrapper, taking values for `feed_list`."""
        make = getattr(self._sess, "make_callable", None)
        runner = (
            make(fetches, feed_list=feed_list, accept_options=True)
            if callable(make)
            else _callable_of(self._sess, fetches, feed_list)
        )

        def run_fetches(
            *values: Any, options: RunOptions | None = None, run_metadata: RunMetadata | None = None
        ) -> Any:
            if not accept_options and (options is not None or run_metadata is not None):
                raise TypeError("Make the callable with accept_options=True to pass options or run_metadata.")
            return self.run(
                None, None, options, run_metadata, callable_runner=runner, callable_runner_args=values
            )

        return run_fetches

    def run_step_fn(self, step_fn: Callable[[Any], Any]) -> Any:
        """Call `step_fn(step_context)`, whose `session` is the wrapped one and whose runs go through us.

        Raises:
            ValueError: the function does not take exactly `step_context`.
        """
        names = tuple(inspect.signature(step_fn).parameters)
        if names not in (("step_context",), ("self", "step_context")):
            raise ValueError(
                f"A step function takes one argument named step_context (besides self), got {names}."
            )
        return step_fn(WrappedStepContext(self._sess, self.run))

    # --- what a subclass decides -------------------------------------------------------------------

    @abstractmethod
    def on_session_init(self, request: OnSessionInitRequest) -> OnSessionInitResponse:
        """Called once, when the wrapper is made."""

    @abstractmethod
    def on_run_start(self, request: OnRunStartRequest) -> OnRunStartResponse:
        """Called before each run that is not passed through."""

    @abstractmethod
    def on_run_end(self, request: OnRunEndRequest) -> OnRunEndResponse:
        """Called after each such run, unless it raised."""

    def invoke_node_stepper(self, node_stepper: Any, restore_variable_values_on_exit: bool = True) -> Any:
        """Step through a run node by node; only an interactive wrapper can."""
        raise NotImplementedError(f"{type(self).__name__} has no node stepper.")

    def _forward(self, name: str, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self._sess, name, None)
        if not callable(method):
            raise NotImplementedError(f"The wrapped {type(self._sess).__name__} has no {name}().")
        return method(*args, **kwargs)


class WrappedStepContext:
    """What a step function gets from a wrapper: the wrapped session, and runs that are watched."""

    def __init__(self, session: Any, run_with_hooks: Callable[..., Any]) -> None:
        self.session = session
        self.run_with_hooks = run_with_hooks

    def request_stop(self) -> None:
        """Leave the step function, by raising `StopIteration`."""
        raise StopIteration("A step function requested to stop.")


SESSION_METHODS = ("run", "make_callable", "list_devices", "close", "as_default")


def check_wrappable(sess: Any) -> None:
    """Refuse anything that is no engine session and no `MonitoredSession`."""
    found = None if isinstance(sess, BaseDebugWrapperSession) else as_engine_session(sess)
    is_engine = is_session(found) and all(callable(getattr(found, each, None)) for each in SESSION_METHODS)
    if not (is_engine or isinstance(found, MonitoredSession)):
        raise TypeError(
            "A debug wrapper goes around an engine session, such as tensortap.torch.Session, or a "
            f"MonitoredSession, got {type(sess).__name__}."
        )


def _copied(options: RunOptions | None) -> RunOptions:
    copy = RunOptions()
    if options is not None:
        copy.merge_from(options)
    return copy


def _callable_of(sess: Any, fetches: Any, feed_list: Sequence[Any] | None) -> Callable[..., Any]:
    keys = list(feed_list or ())

    def runner(
        *values: Any, options: RunOptions | None = None, run_metadata: RunMetadata | None = None
    ) -> Any:
        return sess.run(fetches, dict(zip(keys, values, strict=True)), options, run_metadata)

    return runner


def _check_response(response: Any, expected: type, method: str) -> None:
    if not isinstance(response, expected):
        raise TypeError(f"{method} must return {expected.__name__}, got {type(response).__name__}.")
