"""Debug hooks: watching the runs of a monitored session, or of a loop, without wrapping it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensortap.debug.guarding import Guarding, SharedGuarding
from tensortap.debug.non_interactive import Watch, watch_fn_of
from tensortap.debug.run_directories import FLUSH_SECS, RunDirectories, check_retention
from tensortap.debug.threads import ThreadFilter
from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.hooks.hook import SessionRunHook
from tensortap.seam.options import RunOptions
from tensortap.sink.budget import Budget, as_budget
from tensortap.sink.queue import DEFAULT_MAX_WAIT_SECS
from tensortap.sink.retention import Retention
from tensortap.watch.match import watch_run

if TYPE_CHECKING:
    from tensortap.debug.presence import Presence
    from tensortap.debug.streaming import Streamer
    from tensortap.sink.stream_options import StreamOptions

__all__ = ["DumpingDebugHook", "GrpcDebugHook", "TensorBoardDebugHook"]


class DumpingDebugHook(SessionRunHook):
    """Dumps the tensors of every run to the file system.

    Each run gets a directory `run_<epoch µs>_<0-based counter>` under `session_root`, complete also when the
    run fails; the error itself goes its way. Writing happens in a thread of its own; the end of the session
    waits for it.

    Args:
        session_root: directory that does not exist, and is then made, or is empty. It is looked at before the
            first run. Ranks of one launch may share it.
        watch_fn: `WatchOptions`, or `watch_fn(fetches, feeds)` that returns them for the coming run; everything by
            default.
        thread_name_filter: regular expression for the names of threads whose runs are dumped.
        log_usage: kept for callers of the original interface; nothing is ever reported anywhere.
        budget: how many bytes may be written, per run and altogether, and how much time watching may take; a number
            such as 1.1 stands for the latter alone.
        retention: which runs are kept.
        max_wait_secs: how long a slow disk may hold up training before records are dropped and counted.
        fsync: have every run on the disk itself at its end, so that it outlives a power failure and not only the
            process; the writing thread waits for it, not training.

    >>> import tempfile, torch, tensortap as tt
    >>> from pathlib import Path
    >>> root = Path(tempfile.mkdtemp()) / "dumps"
    >>> hook = DumpingDebugHook(root, watch_fn=tt.WatchOptions("DebugNumericSummary"))
    >>> with tt.MonitoredSession(tt.torch.Session(lambda x: {"y": x + 1}), hooks=[hook]) as session:
    ...     result = session.run("y", {"x": torch.ones(2)})
    >>> len(list(root.glob("run_*_0")))
    1
    """

    def __init__(
        self,
        session_root: str | os.PathLike[str],
        watch_fn: Watch | None = None,
        thread_name_filter: str | None = None,
        log_usage: bool = True,
        *,
        budget: Budget | float | None = None,
        retention: Retention | None = None,
        max_wait_secs: float = DEFAULT_MAX_WAIT_SECS,
        fsync: bool = False,
    ) -> None:
        check_retention(retention)
        self._session_root = session_root
        self._watch_fn = watch_fn_of(watch_fn)
        self._thread_filter = ThreadFilter(thread_name_filter)
        self._budget = as_budget(budget)
        self._retention = retention
        self._max_wait_secs = max_wait_secs
        self._fsync = fsync
        self._guarding: SharedGuarding | None = None
        self._dumper: RunDirectories | None = None
        self._lock = threading.Lock()

    def guard_with(self, guarding: SharedGuarding) -> None:
        """Take part in a budget of time that several hooks share; before the first run.

        Raises:
            ValueError: the hook has a budget of time of its own.
        """
        _refuse_two_budgets(self._budget is not None and self._budget.time is not None)
        self._guarding = guarding

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the coming run to be watched.

        Raises:
            ValueError: before the first run, if `session_root` cannot be used.
        """
        if not self._thread_filter.matches():
            return None
        dumper, first = self._open()
        dumper.settle()  # the last run, if it was refused before it began
        if dumper.skips(run_context.session):
            return None
        fetches, feeds = run_context.original_args.fetches, run_context.original_args.feed_dict
        options = RunOptions()
        watch_run(
            options,
            self._watch_fn(fetches, feeds),
            dumper.prepare(fetches, feeds),
            reset_disk_byte_usage=first,
        )
        return SessionRunArgs(None, None, options)

    def _open(self) -> tuple[RunDirectories, bool]:
        """The dumper, and whether it is new; it is made by the first run of whichever thread comes first."""
        with self._lock:
            if self._dumper is not None:
                return self._dumper, False
            self._dumper = RunDirectories(
                self._session_root,
                budget=self._budget,
                retention=self._retention,
                max_wait_secs=self._max_wait_secs,
                fsync=self._fsync,
                guarding=self._guarding,
            )
            return self._dumper, True

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Take the directory away again if the run only read state."""
        if self._dumper is not None:
            self._dumper.settle()

    def flush(self, timeout: float | None = FLUSH_SECS) -> bool:
        """Wait until all runs so far are on disk; False if the timeout, in seconds, passed first."""
        return True if self._dumper is None else self._dumper.flush(timeout)

    def end(self, session: Any) -> None:
        """Wait for the records of the session."""
        if self._dumper is not None:
            self._dumper.settle()
            self._dumper.close()

    def on_error(self, session: Any, error: BaseException) -> None:
        """Write what retention holds back, for it led to the error, and wait."""
        if self._dumper is not None:
            self._dumper.settle()
            self._dumper.keep_held()
            self._dumper.close(error=error)


class GrpcDebugHook(SessionRunHook):
    """Streams the tensors of every run to debug servers, as they are computed.

    Any tfdbg debug server will do: `tensortap serve`, or one of TensorFlow's. Streaming happens in threads of its
    own and never holds up a run, whatever the servers do; the end of the session waits for the last records, at
    most `StreamOptions.flush_secs`, and says in one line what became of all of them.

    Args:
        grpc_debug_server_addresses: `host:port[/path]`, or a list of such, with or without `grpc://`.
        watch_fn: `WatchOptions`, or `watch_fn(fetches, feeds)` that returns them for the coming run; everything by
            default.
        thread_name_filter: regular expression for the names of threads whose runs are streamed.
        log_usage: kept for callers of the original interface; nothing is ever reported anywhere.
        stream: timeouts, pauses, bounds and token.
        send_traceback_and_source_code: also send source lines and files, whenever the graph has grown.
        budget: time of the program with us over its time without, as in 1.1: so few runs are watched, and the others
            only guarded. All runs by default.

    Raises:
        MissingExtraError: gRPC is not installed.
        TypeError: addresses that are neither text nor a list of text.
        ValueError: an address without a port.

    >>> import torch, tensortap as tt
    >>> hook = GrpcDebugHook(
    ...     ["localhost:1"], tt.WatchOptions("DebugNumericSummary"),
    ...     stream=tt.StreamOptions(connect_timeout_secs=0.1),
    ... )
    >>> with tt.MonitoredSession(tt.torch.Session(lambda x: {"y": x + 1}), hooks=[hook]) as session:
    ...     result = session.run("y", {"x": torch.ones(2)})  # nobody listens there, which the step does not notice
    """

    def __init__(
        self,
        grpc_debug_server_addresses: str | Sequence[str],
        watch_fn: Watch | None = None,
        thread_name_filter: str | None = None,
        log_usage: bool = True,
        *,
        stream: StreamOptions | None = None,
        send_traceback_and_source_code: bool = False,
        budget: float | None = None,
    ) -> None:
        # Imported here: gRPC is of no use to programs that only dump, and need not be installed.
        from tensortap.debug.streaming import Streamer

        self._watch_fn = watch_fn_of(watch_fn)
        self._thread_filter = ThreadFilter(thread_name_filter)
        self._streamer: Streamer = Streamer(
            grpc_debug_server_addresses, stream, send_traceback_and_source_code
        )
        self._guarding: Guarding | SharedGuarding | None = None if budget is None else Guarding(budget)
        self._is_of_process = False

    def tell_of(self, presence: Presence) -> None:
        """Have the servers told what becomes of this process, too, whose end then says what became of the records."""
        presence.listeners.append(self._streamer.send_process)
        self._is_of_process = True

    def guard_with(self, guarding: SharedGuarding) -> None:
        """Take part in a budget of time that several hooks share; before the first run.

        Raises:
            ValueError: the hook has a budget of its own.
        """
        _refuse_two_budgets(self._guarding is not None)
        self._guarding = guarding

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the coming run to be watched, unless all servers are down."""
        if not self._thread_filter.matches():
            return None
        urls = self._streamer.urls_for_run()
        if not urls or (self._guarding is not None and not self._guarding.begins(run_context.session)):
            return None
        fetches, feeds = run_context.original_args.fetches, run_context.original_args.feed_dict
        options = RunOptions()
        watch_run(options, self._watch_fn(fetches, feeds), urls)
        return SessionRunArgs(None, None, options)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Send source lines, if asked to and the graph has grown."""
        if self._guarding is not None:
            self._guarding.ended()
        asked = run_context.original_args
        self._streamer.send_program(run_context.session, asked.fetches, asked.feed_dict)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the servers have all runs so far; False if the timeout, in seconds, passed first."""
        return self._streamer.flush(timeout)

    def outcomes(self) -> list[str]:
        """What became of the records so far, one sentence for each server; or of all, at the end of a process."""
        watched = [] if self._guarding is None else [self._guarding.outcome]
        streamed = self._streamer.final_outcomes() if self._is_of_process else self._streamer.outcomes()
        return [*streamed, *watched]

    def end(self, session: Any) -> None:
        """Wait for the records of the session, and say what became of them."""
        self._streamer.close(says_outcome=not self._is_of_process)

    def on_error(self, session: Any, error: BaseException) -> None:
        """Wait for the records that led to the error."""
        self._streamer.close(says_outcome=not self._is_of_process)


class TensorBoardDebugHook(GrpcDebugHook):
    """Streams to a debugger with a user interface, which chooses the tensors it wants to see.

    Every tensor is watched with `DebugIdentity(gated_grpc=true)`: its value is sent while the server asks for
    it, and the run waits where the server has set a breakpoint.

    Args:
        grpc_debug_server_addresses: as for `GrpcDebugHook`.
        thread_name_filter: as for `GrpcDebugHook`.
        send_traceback_and_source_code: send source lines and files, whenever the graph has grown.
        log_usage: kept for callers of the original interface; nothing is ever reported anywhere.
        stream: as for `GrpcDebugHook`.

    >>> import torch, tensortap as tt
    >>> hook = TensorBoardDebugHook("localhost:1", stream=tt.StreamOptions(connect_timeout_secs=0.1))
    >>> with tt.MonitoredSession(tt.torch.Session(lambda x: {"y": x + 1}), hooks=[hook]) as session:
    ...     result = session.run("y", {"x": torch.ones(2)})
    """

    def __init__(
        self,
        grpc_debug_server_addresses: str | Sequence[str],
        thread_name_filter: str | None = None,
        send_traceback_and_source_code: bool = True,
        log_usage: bool = True,
        *,
        stream: StreamOptions | None = None,
    ) -> None:
        from tensortap.debug.streaming import gated_watch

        super().__init__(
            grpc_debug_server_addresses,
            gated_watch,
            thread_name_filter,
            log_usage,
            stream=stream,
            send_traceback_and_source_code=send_traceback_and_source_code,
        )


def _refuse_two_budgets(has_one: bool) -> None:
    if has_one:
        raise ValueError(
            "A hook with a budget of time of its own cannot take part in that of a monitor: leave one out."
        )
