"""The hook: five moments in the life of a monitored session, each with a do-nothing default."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.seam.native import host_of

if TYPE_CHECKING:
    from tensortap.hooks.coordinator import Coordinator

__all__ = ["SessionRunHook"]

_log = logging.getLogger("tensortap.hooks")

MOMENTS = ("begin", "after_create_session", "before_run", "after_run", "end")


class SessionRunHook:
    """Something to be done around the runs of a monitored session.

    The life of a hook, told in order:

    1. The monitored session is constructed. `begin()` is called once on every hook, in list order. The
       graph of the session is the default graph and may still be extended with derived nodes.
    2. The graph is finalised, the engine session is created and initialised or restored, and
       `after_create_session(session, coord)` is called on every hook.
    3. The caller calls `run`. `before_run(context)` of every hook may add fetches, feeds and options.
    4. The engine executes one run that serves the caller and all hooks.
    5. `after_run(context, values)` of every hook receives what that hook asked for. Any hook may have
       called `context.request_stop()` by now; then `should_stop()` becomes true. When no hook has failed,
       what hooks left to `context.on_success(action)` is done, checkpoints among it. Back to 3.
    6. If the engine is preempted in 3 to 5 (`AbortedError`, `UnavailableError`), a new session is created:
       step 2 is repeated without `begin()`, then the interrupted run from 3.
    7. The with-block ends normally, or by `OutOfRangeError` or `StopIteration`: `end(session)` is called on
       every hook, in list order, and the session is closed. After any other exception `on_error` is called
       instead of `end()`, and the session is closed.

    An error in `begin`, `after_create_session` or `before_run` stops the sequence at once, and so does a
    preemption in `after_run`: the run will be repeated. After another error in `after_run`, and any in `end`,
    the remaining hooks are still called; then the first error is raised and the others are logged.
    An exception passes through unchanged, with a note that names the hook and the moment.

    A monitored session of TensorFlow's own calls these methods too. They are given what they would be given here: an
    engine session, our graph, context and values; and what they ask for is translated.

    Example:
        >>> class CountRuns(SessionRunHook):
        ...     runs = 0
        ...     def after_run(self, run_context, run_values):
        ...         self.runs += 1
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for moment in MOMENTS:
            method = cls.__dict__.get(moment)
            if inspect.isfunction(method):
                setattr(cls, moment, _for_any_host(method, moment))

    def begin(self) -> None:
        """Called once before the session is created, with the session's graph as the default graph.

        A second call on the same graph must leave the graph as it is.
        """

    def after_create_session(self, session: Any, coord: Coordinator) -> None:
        """Called when an engine session was created, also after every recovery; the graph is finalised.

        Args:
            session: the raw engine session; running it calls no hooks.
            coord: coordinates the threads of this session; it is replaced when the session is.
        """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run.

        Returns:
            What to add to the run, or None.
        """
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each run that did not fail.

        Args:
            run_context: the object `before_run` got.
            run_values: the results of what `before_run` asked for.
        """

    def end(self, session: Any) -> None:
        """Called once when the monitored session ends without error, before the session is closed.

        Args:
            session: the raw engine session, still usable.
        """

    def on_error(self, session: Any, error: BaseException) -> None:
        """Called instead of `end` when an exception leaves the monitored session's with-block.

        What it raises is only logged, for the exception that is under way is the one to be seen. A hook
        need not have this method.

        Args:
            session: the raw engine session, or None if it was lost; the failed run may have left it in any
                state.
            error: the exception.
        """


def _for_any_host(method: Callable[..., Any], moment: str) -> Callable[..., Any]:
    """A moment of a hook that may also be called by a monitored session of a framework's own."""

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        given = (*args, *kwargs.values())
        host = host_of(moment, given)
        if host is None:
            return method(self, *args, **kwargs)
        return host.call(self, method, moment, given)

    return called


def check_hooks(hooks: Iterable[Any] | None) -> list[Any]:
    """The hooks as a list, after checking that each of them is one.

    Raises:
        TypeError: names the object and what it lacks.
    """
    if hooks is None:
        return []
    try:
        # A list, because an iterator would be used up by the first moment.
        listed = list(hooks)
    except TypeError:
        raise TypeError(
            f"hooks must be a list of hooks, got {type(hooks).__name__}; write hooks=[hook] for a single one."
        ) from None
    for hook in listed:
        if isinstance(hook, type):
            raise TypeError(f"{hook.__name__} is a hook class; pass an instance: {hook.__name__}(...).")
        missing = [moment for moment in MOMENTS if not callable(getattr(hook, moment, None))]
        if missing:
            raise TypeError(
                f"{hook!r} is no hook: {type(hook).__name__} has no method {', '.join(missing)}. "
                "Derive it from SessionRunHook, whose methods do nothing by default."
            )
    return listed


def call_hook(hook: Any, moment: str, *args: Any) -> Any:
    """Call one moment of one hook; an exception passes through with a note that names both."""
    __tracebackhide__ = True
    try:
        return getattr(hook, moment)(*args)
    except Exception as error:
        note = f"Raised in {moment}() of the hook {type(hook).__qualname__}."
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def tell_hooks_of_error(hooks: Iterable[Any], session: Any, error: BaseException) -> None:
    """Call `on_error` of the hooks that have it; what they raise is logged."""
    for hook in hooks:
        on_error = getattr(hook, "on_error", None)
        if callable(on_error):
            try:
                on_error(session, error)
            except Exception as another:
                _log.error("on_error() of the hook %s failed: %r", type(hook).__qualname__, another)


def call_every_hook(
    hooks: Iterable[tuple[Any, tuple[Any, ...]]], moment: str, stop_at: tuple[type[Exception], ...] = ()
) -> None:
    """Call one moment of all hooks even if some fail, then raise the first error and log the others.

    Args:
        hooks: each with the arguments of the call.
        moment: which method to call.
        stop_at: after these errors no further hook is called.
    """
    __tracebackhide__ = True
    first: Exception | None = None
    for hook, args in hooks:
        try:
            call_hook(hook, moment, *args)
        except Exception as error:
            if first is None:
                first = error
            else:
                _log.error(
                    "%s() of the hook %s failed too: %r",
                    moment,
                    type(hook).__qualname__,
                    error,
                    exc_info=error,
                )
            if isinstance(error, stop_at):
                break
    if first is not None:
        raise first
