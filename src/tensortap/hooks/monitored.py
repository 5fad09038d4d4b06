"""Monitored sessions: sessions that call hooks around every run, and survive preemption."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from tensortap.errors import OutOfRangeError, SessionClosedError
from tensortap.hooks.creators import ChiefSessionCreator, as_session_creator
from tensortap.hooks.hook import call_every_hook, call_hook, check_hooks, tell_hooks_of_error
from tensortap.hooks.live import LiveSession
from tensortap.hooks.recovery import PREEMPTION_ERRORS, RecoveryPolicy
from tensortap.hooks.scaffold import Scaffold
from tensortap.seam.graph import Graph, current_graph
from tensortap.seam.native import graph_of_creator
from tensortap.seam.options import RunMetadata, RunOptions

__all__ = ["MonitoredSession", "SingularMonitoredSession", "StepContext"]

_log = logging.getLogger("tensortap.hooks")

_T = TypeVar("_T")

CLEAN_EXITS = (OutOfRangeError, StopIteration)
"""Leaving a with-block by exactly one of these is the end of the input, not an error."""


class StepContext:
    """What a step function gets: the raw session, runs with hooks, and a way to stop.

    Attributes:
        run_with_hooks: runs like the monitored session's `run`; a preemption in it repeats the whole step
            function.
    """

    def __init__(self, owner: Monitored, run_with_hooks: Callable[..., Any]) -> None:
        self._owner = owner
        self.run_with_hooks = run_with_hooks

    @property
    def session(self) -> Any:
        """The raw engine session in use at this moment; running it calls no hooks."""
        return self._owner.engine_session()

    def request_stop(self) -> None:
        """Leave the step function and the enclosing with-block, by raising `StopIteration`."""
        raise StopIteration("A step function requested to stop.")


class Monitored:
    """What both monitored sessions share; they differ in recovery alone."""

    def __init__(
        self,
        creator: Any,
        hooks: Iterable[Any] | None,
        stop_grace_period_secs: float,
        recovery: RecoveryPolicy,
    ) -> None:
        self._live: LiveSession | None = None
        self._closed = True  # until constructed, so that a failed construction leaves nothing to close
        self._lost: Exception | None = None
        self._hooks = check_hooks(hooks)
        self._creator = creator
        self._grace_secs = stop_grace_period_secs
        self._recovery = recovery
        self._graph = self._graph_to_begin_on()
        self._unfinalize_at_close = not self._graph.finalized
        try:
            with self._graph.as_default():
                for hook in self._hooks:
                    call_hook(hook, "begin")
            self._recovering(lambda live: None)
        except BaseException:
            self._release_graph(None)
            discard_unused = getattr(self._creator, "discard_unused", None)
            if callable(discard_unused):
                discard_unused()
            raise
        self._closed = False

    def _graph_to_begin_on(self) -> Graph:
        while True:
            try:
                graph = getattr(self._creator, "graph", None) or graph_of_creator(self._creator)
            except PREEMPTION_ERRORS as error:
                self._recovery.preempted(error)
            else:
                return graph or current_graph() or Graph()

    # --- using it ----------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph | None:
        """The graph the session runs; None once closed."""
        raw = self.engine_session()
        return None if raw is None else raw.graph

    def run(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        *,
        hooks: Iterable[Any] | None = None,
    ) -> Any:
        """One run of the engine with hooks around it.

        Args:
            fetches: what to return: keys or tensor names in any structure; None returns what the step does.
            feed_dict: values by step parameter or tensor name; never modified.
            options: options of the run; never modified.
            run_metadata: filled by the engine.
            hooks: call only these hooks of this session, in the session's order; [] calls none. All by
                default.

        Raises:
            RuntimeError: `should_stop()` is true already, or hooks and caller feed the same tensor.
            SessionClosedError: the session is closed.
        """
        __tracebackhide__ = True
        selected = self._select(hooks)
        return self._recovering(
            lambda live: live.run(selected, fetches, feed_dict, options, run_metadata), completes=True
        )

    def run_step_fn(self, step_fn: Callable[[StepContext], _T]) -> _T:
        """Call `step_fn(step_context)`, in which raw runs and runs with hooks can be mixed.

        Returns:
            What the function returns.

        Raises:
            ValueError: the function does not take exactly `step_context`.
            StopIteration: the function called `step_context.request_stop()`; a with-block ends cleanly.
        """
        __tracebackhide__ = True
        if not callable(step_fn):
            raise TypeError(f"run_step_fn needs a function, got {type(step_fn).__name__}.")
        names = tuple(inspect.signature(step_fn).parameters)
        if names not in (("step_context",), ("self", "step_context")):
            raise ValueError(
                f"A step function takes one argument named step_context (besides self), got {names}."
            )

        def call(live: LiveSession) -> _T:
            def run_with_hooks(
                fetches: Any = None,
                feed_dict: Mapping[Any, Any] | None = None,
                options: RunOptions | None = None,
                run_metadata: RunMetadata | None = None,
                *,
                hooks: Iterable[Any] | None = None,
            ) -> Any:
                return live.run(self._select(hooks), fetches, feed_dict, options, run_metadata)

            return step_fn(StepContext(self, run_with_hooks))

        return self._recovering(call, completes=True)

    def should_stop(self) -> bool:
        """Whether to leave the training loop: a hook or a thread asked for it, or the session is closed."""
        if self._closed or self._live is None:
            return True
        return self._live.should_stop()

    def _select(self, hooks: Iterable[Any] | None) -> Sequence[Any]:
        if hooks is None:
            return self._hooks
        wanted = list(hooks)
        known = {id(hook) for hook in self._hooks}
        foreign = [hook for hook in wanted if id(hook) not in known]
        if foreign:
            raise ValueError(
                f"run(hooks=...) selects among the hooks of this session; not one of them: "
                f"{', '.join(map(repr, foreign))}."
            )
        chosen = {id(hook) for hook in wanted}
        return [hook for hook in self._hooks if id(hook) in chosen]

    def engine_session(self) -> Any:
        return None if self._live is None else self._live.raw

    # --- recovery ----------------------------------------------------------------------------------

    def _recovering(self, action: Callable[[LiveSession], _T], completes: bool = False) -> _T:
        """Do `action` on the live session; after a preemption make a new session and do it again."""
        __tracebackhide__ = True
        if completes and self._closed:
            raise SessionClosedError("This monitored session is closed; make a new one to run again.")
        while True:
            try:
                if self._live is None:
                    self._live = LiveSession.create(self._creator, self._hooks, self._graph, self._grace_secs)
                result = action(self._live)
            except PREEMPTION_ERRORS as error:
                self._recover_from(error)
                continue
            if completes:
                self._recovery.progress()
            return result

    def _recover_from(self, error: Exception) -> None:
        """Give up the live session and wait as the policy says, or raise the error."""
        live, self._live = self._live, None
        if live is not None:
            live.discard()
        self._recovery.preempted(error)

    # --- closing -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        # The exact class: a subclass may mean something else to its author.
        clean = exception_type is None or getattr(exception_type, "stands_for", exception_type) in CLEAN_EXITS
        self._close(None if clean else exception)
        return clean

    def close(self) -> None:
        """Call `end` on all hooks, stop the threads and close the engine session; harmless when repeated."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        live = self._live
        try:
            if error is not None:
                tell_hooks_of_error(self._hooks, self.engine_session(), error)
            elif live is not None:
                call_every_hook(((hook, (live.raw,)) for hook in self._hooks), "end")
            elif self._hooks:
                _log.warning("The session was lost, so end() is not called on its hooks.")
        finally:
            try:
                if live is not None:
                    self._close_live(live)
            finally:
                self._live = None
                self._release_graph(live)
        if error is None and self._lost is not None:
            raise self._lost

    def _close_live(self, live: LiveSession) -> None:
        live.close()

    def _release_graph(self, live: LiveSession | None) -> None:
        """Undo the finalisation, unless the graph was final before we came."""
        if self._unfinalize_at_close:
            self._graph.unfinalize()
            own = getattr(live.raw, "graph", None) if live is not None else None
            if own is not None:
                own.unfinalize()


class MonitoredSession(Monitored):
    """A session that calls hooks around every run and makes itself anew after a preemption.

    Args:
        session_creator: a `SessionCreator`; or an engine session, or a function that makes one, for a
            `ChiefSessionCreator` with defaults.
        hooks: called in this order at every moment; see `SessionRunHook`.
        stop_grace_period_secs: how long threads may take to stop when the session closes.
        max_recoveries: give up, raising the preemption error, after this many recoveries in a row without a
            completed run; None never gives up.
        recovery_backoff_secs: the first recovery is immediate, the second waits this long, each further one
            twice as long as the one before, up to 30 s.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> step = tt.torch.Session(lambda x: {"loss": x.sum()})
        >>> with MonitoredSession(step, hooks=[tt.StopAtStepHook(last_step=2)]) as session:
        ...     while not session.should_stop():
        ...         print(float(session.run("loss", {"x": torch.ones(3)})))
        3.0
        3.0
    """

    StepContext = StepContext

    def __init__(
        self,
        session_creator: Any = None,
        hooks: Iterable[Any] | None = None,
        stop_grace_period_secs: float = 120,
        *,
        max_recoveries: int | None = 10,
        recovery_backoff_secs: float = 1.0,
    ) -> None:
        super().__init__(
            as_session_creator(session_creator),
            hooks,
            stop_grace_period_secs,
            RecoveryPolicy(max_recoveries, recovery_backoff_secs),
        )

    def should_stop(self) -> bool:
        """Whether to leave the training loop; never raises.

        A thread that reported a preemption has the session made anew here, and training goes on. If that
        is not possible, the answer is yes and the error is raised when the session is closed.
        """
        if self._closed or self._lost is not None:
            return True
        if self._live is None:
            return True
        try:
            return self._live.should_stop()
        except PREEMPTION_ERRORS as error:
            try:
                self._recover_from(error)
                self._recovering(lambda live: None)
            except Exception as lost:
                _log.error("The preempted session could not be made anew: %r", lost)
                self._lost = lost
                return True
            return False
        except Exception:
            # It is raised when the session is closed.
            return True

    def _close_live(self, live: LiveSession) -> None:
        try:
            live.close()
        except PREEMPTION_ERRORS as error:
            # There is nothing left to do that would need the peer.
            _log.info("Ignored at the end of the session: %r", error)


class SingularMonitoredSession(Monitored):
    """A session that calls hooks around every run and never recovers: preemption errors reach the caller.

    Args:
        hooks: called in this order at every moment; see `SessionRunHook`.
        scaffold: pieces of the initialisation.
        master: accepted for callers of the original interface.
        config: accepted for callers of the original interface.
        checkpoint_dir: restore from the newest checkpoint in this directory, if any.
        stop_grace_period_secs: how long threads may take to stop when the session closes.
        checkpoint_filename_with_path: restore from this checkpoint.
        session: an engine session, or a function without arguments that makes one.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> with SingularMonitoredSession(session=tt.torch.Session(lambda x: {"loss": x.sum()})) as session:
        ...     session.raw_session().graph is session.graph
        True
    """

    StepContext = StepContext

    def __init__(
        self,
        hooks: Iterable[Any] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | os.PathLike[str] | None = None,
        *,
        session: Any,
    ) -> None:
        creator = ChiefSessionCreator(
            scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path, session=session
        )
        super().__init__(creator, hooks, stop_grace_period_secs, RecoveryPolicy(0, 0.0))

    def raw_session(self) -> Any:
        """The engine session; None once closed."""
        return self.engine_session()

    def _recover_from(self, error: Exception) -> None:
        # The session stays as it is, so that the caller can look at it and close it.
        if self._live is None or self._closed:
            super()._recover_from(error)
        raise error
