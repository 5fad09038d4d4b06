"""One engine session in use: from its creation, or re-creation, until it is closed or preempted."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensortap.hooks.args import (
    MergedRequest,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
    merge_requests,
)
from tensortap.hooks.coordinator import Coordinator
from tensortap.hooks.hook import SessionRunHook, call_every_hook, call_hook
from tensortap.hooks.recovery import PREEMPTION_ERRORS
from tensortap.seam.graph import Graph, GraphKeys
from tensortap.seam.native import as_engine_session
from tensortap.seam.options import RunMetadata, RunOptions

__all__ = ["LiveSession", "PendingRun"]

_log = logging.getLogger("tensortap.hooks")


@dataclass(frozen=True, slots=True)
class PendingRun:
    """A run whose hooks have been asked and not yet told."""

    hooks: Sequence[Any]
    context: SessionRunContext
    request: MergedRequest


class LiveSession:
    """A raw session with the coordinator of its threads and the stop flag of its hooks.

    All three are born and die together, which is why a stop request does not outlive a preemption.
    """

    def __init__(self, raw: Any, grace_secs: float) -> None:
        self.raw = raw
        # Nothing counts as a clean stop here: whatever ends a thread is for the one who closes the session.
        self.coord = Coordinator(clean_stop_exception_types=())
        self.stop_requested = False
        self._grace_secs = grace_secs

    @classmethod
    def create(cls, creator: Any, hooks: Sequence[Any], graph: Graph, grace_secs: float) -> LiveSession:
        """Make a session, start the threads its graph registers, and tell every hook."""
        with graph.as_default():
            live = cls(as_engine_session(creator.create_session()), grace_secs)
            try:
                own_graph = getattr(live.raw, "graph", None)
                if own_graph is not None:
                    if own_graph is not graph:
                        own_graph.adopt(graph)
                    own_graph.finalize()
                    for runner in own_graph.get_collection(GraphKeys.QUEUE_RUNNERS):
                        runner.create_threads(live.raw, coord=live.coord, daemon=True, start=True)
                for hook in hooks:
                    call_hook(hook, "after_create_session", live.raw, live.coord)
            except BaseException:
                live.discard()
                raise
            return live

    def run(
        self,
        hooks: Sequence[Any],
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> Any:
        """One run with these hooks around it."""
        __tracebackhide__ = True
        self.refuse_when_stopped()
        try:
            return self._run(hooks, fetches, feed_dict, options, run_metadata)
        except PREEMPTION_ERRORS:
            raise
        except Exception:
            # A thread that lost its peer often makes the run fail in some other way: the loss is the cause.
            self._raise_preemption_of_threads()
            raise

    def refuse_when_stopped(self) -> None:
        """Raise if a hook has requested to stop."""
        if self.stop_requested:
            raise RuntimeError(
                "run() was called although should_stop() is true. Check should_stop() before each run."
            )

    def _run(
        self,
        hooks: Sequence[Any],
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: RunOptions | None,
        run_metadata: RunMetadata | None,
    ) -> Any:
        __tracebackhide__ = True
        pending = self.before_run(hooks, fetches, feed_dict, options)
        metadata = RunMetadata() if run_metadata is None else run_metadata
        merged = pending.request
        results = self.raw.run(merged.fetches, merged.feed_dict, merged.options, metadata)
        return self.after_run(pending, results, metadata)

    def before_run(
        self,
        hooks: Sequence[Any],
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None,
        options: RunOptions | None,
    ) -> PendingRun:
        """Ask every hook what it wants of the run to come."""
        __tracebackhide__ = True
        caller = SessionRunArgs(fetches, feed_dict)
        context = SessionRunContext(caller, self.raw)
        requests = [(hook, call_hook(hook, "before_run", context)) for hook in hooks]
        return PendingRun(hooks, context, merge_requests(caller, options, requests))

    def after_run(self, pending: PendingRun, results: Any, metadata: RunMetadata) -> Any:
        """Give every hook what it asked for; the caller's part of the results."""
        __tracebackhide__ = True
        context, request = pending.context, pending.request

        def values_for(hook: Any) -> SessionRunValues:
            # Hooks of a framework's own know its messages only.
            is_ours = metadata.native is None or isinstance(hook, SessionRunHook)
            told = metadata if is_ours else metadata.native
            return SessionRunValues(request.results_for_hook(hook, results), request.options, told)

        calls = ((hook, (context, values_for(hook))) for hook in pending.hooks)
        try:
            # A preempted run is repeated: what further hooks made of it would count twice.
            call_every_hook(calls, "after_run", stop_at=PREEMPTION_ERRORS)
            context.succeeded()
        finally:
            # Also when one of them failed, or the stop that another one requested would be lost.
            self.stop_requested |= context.stop_requested
        return request.results_for_caller(results)

    def _raise_preemption_of_threads(self) -> None:
        try:
            self.coord.raise_requested_exception()
        except PREEMPTION_ERRORS:
            raise
        except Exception:
            return

    def should_stop(self) -> bool:
        """Whether a hook or a thread asked to stop; raises what a thread reported."""
        self.coord.raise_requested_exception()
        return self.stop_requested or self.coord.should_stop()

    def close(self) -> None:
        """Stop the threads and close the raw session; raises what a thread reported."""
        try:
            self.coord.request_stop()
            self.coord.join(stop_grace_period_secs=self._grace_secs, ignore_live_threads=True)
        finally:
            try:
                self.raw.close()
            except Exception as error:
                _log.warning("Closing the session failed: %r", error)

    def discard(self) -> None:
        """Close what is of no use any more; errors are only logged."""
        try:
            self.close()
        except Exception as error:
            _log.info("Ignored while closing a session that is given up: %r", error)
