"""The wrapper session that dumps every run to the file system."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensortap.debug.actions import OnRunStartAction, OnRunStartRequest, OnRunStartResponse
from tensortap.debug.base import check_wrappable
from tensortap.debug.non_interactive import NonInteractiveDebugWrapperSession, Watch
from tensortap.debug.run_directories import FLUSH_SECS, RunDirectories
from tensortap.seam.options import RunMetadata, RunOptions
from tensortap.sink.budget import Budget, as_budget
from tensortap.sink.queue import DEFAULT_MAX_WAIT_SECS
from tensortap.sink.retention import Retention

__all__ = ["DumpingDebugWrapperSession"]


class DumpingDebugWrapperSession(NonInteractiveDebugWrapperSession):
    """Runs a session and dumps the tensors of every run to the file system.

    Each run gets a directory `run_<epoch µs>_<0-based counter>` under `session_root`. Writing happens in a
    thread of its own; leaving a with-block, `close()`, `flush()` and the end of the program wait for it.

    Args:
        sess: an engine session, such as `tensortap.torch.Session`, or a `MonitoredSession`.
        session_root: directory that does not exist, and is then made, or is empty; `~` is expanded. Ranks of
            one launch may share it.
        watch_fn: `WatchOptions`, or `watch_fn(fetches, feeds)` that returns them for the coming run; everything by
            default.
        thread_name_filter: regular expression for the names of threads whose runs are dumped.
        pass_through_operrors: raise the `OpError` of a run. By default it is captured and *returned*.
        log_usage: kept for callers of the original interface; nothing is ever reported anywhere.
        budget: how many bytes may be written, per run and altogether, and how much time watching may take; a number
            such as 1.1 stands for the latter alone.
        retention: which runs are kept.
        max_wait_secs: how long a slow disk may hold up training before records are dropped and counted.
        fsync: have every run on the disk itself at its end, so that it outlives a power failure and not only the
            process; the writing thread waits for it, not training.

    Raises:
        ValueError: `session_root` is a file, or a directory that is not empty.

    >>> import tempfile, torch, tensortap as tt
    >>> root = Path(tempfile.mkdtemp())
    >>> with DumpingDebugWrapperSession(tt.torch.Session(lambda x: {"y": x + 1}), root) as session:
    ...     result = session.run("y", {"x": torch.ones(2)})
    >>> len(list(root.glob("run_*_0")))
    1
    """

    def __init__(
        self,
        sess: Any,
        session_root: str | os.PathLike[str],
        watch_fn: Watch | None = None,
        thread_name_filter: str | None = None,
        pass_through_operrors: bool | None = None,
        log_usage: bool = True,
        *,
        budget: Budget | float | None = None,
        retention: Retention | None = None,
        max_wait_secs: float = DEFAULT_MAX_WAIT_SECS,
        fsync: bool = False,
    ) -> None:
        check_wrappable(sess)  # before a directory is made for it
        super().__init__(sess, watch_fn, thread_name_filter, pass_through_operrors)
        self._dumper = RunDirectories(
            session_root,
            budget=as_budget(budget),
            retention=retention,
            max_wait_secs=max_wait_secs,
            fsync=fsync,
        )

    @property
    def session_root(self) -> Path:
        """The directory that holds the runs."""
        return self._dumper.root

    def prepare_run_debug_urls(self, fetches: Any, feed_dict: Any) -> str | list[str]:
        """Make the directory of the coming run, with its fetches and the keys of its feeds in it.

        Returns:
            The `file://` URL of the directory.
        """
        return self._dumper.prepare(fetches, feed_dict, make_directory=True)

    def on_run_start(self, request: OnRunStartRequest) -> OnRunStartResponse:
        """Dump the run, unless retention has no use for it."""
        if self._dumper.skips(self._sess):
            return OnRunStartResponse(OnRunStartAction.NON_DEBUG_RUN, [])
        return super().on_run_start(request)

    def run(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        callable_runner: Callable[..., Any] | None = None,
        callable_runner_args: Sequence[Any] | None = None,
    ) -> Any:
        """Run the wrapped session and dump the run; arguments as for `BaseDebugWrapperSession.run`."""
        try:
            return super().run(
                fetches, feed_dict, options, run_metadata, callable_runner, callable_runner_args
            )
        finally:
            self._dumper.settle()

    def flush(self, timeout: float | None = FLUSH_SECS) -> bool:
        """Wait until all runs so far are on disk; False if the timeout, in seconds, passed first."""
        return self._dumper.flush(timeout)

    def close(self) -> None:
        """Close the wrapped session and wait for the records of its runs."""
        try:
            super().close()
        finally:
            self._dumper.close()

    def __exit__(self, exec_type: Any, exec_value: Any, exec_tb: Any) -> None:
        super().__exit__(exec_type, exec_value, exec_tb)
        if exec_type is not None:
            self._dumper.keep_held()
        self.flush()
        self._dumper.presence.end(exec_value)
