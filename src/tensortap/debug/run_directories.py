"""What the dumping wrapper and the dumping hook share: a session root, and a directory per run in it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tensortap.debug.guarding import Guarding, SharedGuarding, step_of
from tensortap.debug.presence import Presence
from tensortap.debug.root import claim_session_root
from tensortap.records import RunInfo
from tensortap.sink.base import Sink, notices
from tensortap.sink.budget import Budget, Meter
from tensortap.sink.file import FileSink
from tensortap.sink.queue import DEFAULT_MAX_WAIT_SECS, WriterQueue, shared_queue
from tensortap.sink.retention import Keeper, RetainedSink, Retention
from tensortap.sink.session_files import SessionFiles
from tensortap.store.description import RunDescription, write_description
from tensortap.store.layout import run_name
from tensortap.store.session import withdraw_run
from tensortap.watch.urls import Destination, file_url

__all__ = ["RunDirectories", "check_retention"]

FLUSH_SECS = 60.0
"""How long the end of a session waits for its records; what comes later is still written."""

_TEXT_LIMIT = 1 << 16


def check_retention(retention: object) -> None:
    """Refuse what is no retention, before a run could stumble over it."""
    if retention is not None and not isinstance(retention, Retention):
        raise TypeError(f"retention= takes a tensortap Retention(...), got {retention!r}.")


class RunDirectories:
    """Numbers the runs of a session, makes their directories, and opens their sinks.

    Args:
        session_root: directory that does not exist or is empty; see `claim_session_root`.
        budget: how much may be written, and how much time watching may take.
        retention: which runs are kept.
        max_wait_secs: how long a slow disk may hold up training before records are dropped and counted.
        queue: does the writing; that of the process by default.
        fsync: at the end of each run, wait in the writing thread until it is on the disk itself.
        guarding: a budget of time that is shared with others, instead of one of its own.
        joins: the root is that of a job to which this process belongs, and need not be claimed.

    >>> import tempfile
    >>> dumper = RunDirectories(tempfile.mkdtemp())
    >>> dumper.prepare("loss", {"x": 1}).rpartition("_")[2]
    '0'
    """

    def __init__(
        self,
        session_root: str | os.PathLike[str],
        *,
        budget: Budget | None = None,
        retention: Retention | None = None,
        max_wait_secs: float = DEFAULT_MAX_WAIT_SECS,
        queue: WriterQueue | None = None,
        fsync: bool = False,
        guarding: SharedGuarding | None = None,
        joins: bool = False,
    ) -> None:
        check_retention(retention)
        # Absolute, because the program may change its directory while the writer is busy.
        self.root = Path(os.path.abspath(session_root if joins else claim_session_root(session_root)))
        self.presence = Presence(self.root, begins=not joins)
        weakref.finalize(self, self.presence.end)  # of a session that nobody closes
        self.retention = retention or Retention()
        self.meter = Meter(budget)
        self._guarding: Guarding | SharedGuarding | None = guarding
        if guarding is not None:
            guarding.tell_of_bad(self.presence.tell)
        elif budget is not None and budget.time is not None:
            self._guarding = Guarding(budget.time, self.presence.tell)
        self.presence.budget = None if self._guarding is None else self._guarding.budget
        self._keeper = Keeper(self.retention)
        self._files = SessionFiles(self.root, fsync=fsync)
        self._max_wait_secs = max_wait_secs
        self._queue = queue or shared_queue()
        self._runs = 0
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    def skips(self, session: Any) -> bool:
        """Whether retention has no use for the next run of a session, or the budget no time; it is counted as done."""
        if self._guarding is None and self.retention.watches_all:
            return False
        step = step_of(session)
        with self._lock:
            wanted = self.retention.wants_run(self._runs, step)
        if wanted and (self._guarding is None or self._guarding.begins(session)):
            return False
        with self._lock:
            self.presence.begin_run(self._runs, step)
            self._runs += 1
            return True

    def count_anew(self) -> None:
        """Give the next run the number 0: nothing was kept of those before."""
        with self._lock:
            self._runs = 0

    def prepare(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None, *, make_directory: bool = False
    ) -> Destination:
        """Number the coming run and name its directory.

        Args:
            fetches: what will be fetched.
            feed_dict: what will be fed.
            make_directory: make the directory at once, with what is known of the run in it; otherwise the writer
                makes it, which does not hold up training.

        Returns:
            What the engine opens when the run starts.
        """
        with self._lock:
            index = self._runs
            self._runs += 1
        info = RunInfo(
            index,
            -1,
            time.time_ns() // 1000,
            fetches=_printed(fetches),
            feed_keys=_printed(None if feed_dict is None else [_key_text(key) for key in feed_dict]),
        )
        made = make_directory and not self.retention.waits_in_memory
        if made:
            info, made = self._make_directory(info)
        run_dir = self.root / run_name(info.timestamp, info.index)
        opened = False

        def open_prepared(engine_info: RunInfo) -> Sink:
            nonlocal opened
            # A monitored session that recovers runs the same request again: that is another run on disk.
            mine = replace(info, timestamp=time.time_ns() // 1000) if opened else info
            opened = True
            return self._open(mine, engine_info, makes_directory=mine is not info or not made)

        def withdraw() -> None:
            if made and not opened:
                withdraw_run(run_dir, info)

        self._of_thread.withdraw = withdraw
        return Destination(file_url(run_dir), open_prepared)

    def settle(self) -> None:
        """The run that this thread prepared is over; if no engine opened it, nothing ran and nothing stays.

        That is so for a run that only read state, and for one that was refused before it began.
        """
        if self._guarding is not None:
            self._guarding.ended()
        withdraw: Callable[[], None] = self._of_thread.__dict__.pop("withdraw", lambda: None)
        withdraw()

    def keep_held(self) -> None:
        """Write the runs that retention holds back: something went wrong outside of a run."""
        if self.retention.on_error:
            self._keeper.keep_all()

    def flush(self, timeout: float | None = FLUSH_SECS) -> bool:
        """Wait until everything so far is written; False if the timeout passed first."""
        return self._queue.drain(timeout)

    def close(self, timeout: float | None = FLUSH_SECS, error: BaseException | None = None) -> bool:
        """Forget runs that are held back for nothing, and wait for the rest; harmless when called again.

        Args:
            timeout: in seconds.
            error: what ended the session, if that was an error.
        """
        self._keeper.close()
        self._queue.submit(self._files.close)
        done = self.flush(timeout)
        if not done:
            notices.warn(("flush", self.root), "Records under %s are still being written.", self.root)
        self.presence.end(error)
        return done

    def _make_directory(self, info: RunInfo) -> tuple[RunInfo, bool]:
        """Make the directory of a run; if its name is taken, by another rank, a later microsecond's.

        Returns:
            The run as it is called now, and whether its directory is there.
        """
        while True:
            run_dir = self.root / run_name(info.timestamp, info.index)
            made = False
            try:
                run_dir.mkdir()
                made = True
                write_description(run_dir, RunDescription(info))
            except FileExistsError:
                info = replace(info, timestamp=info.timestamp + 1)
                continue
            except OSError as error:
                notices.warn(
                    ("mkdir", self.root, error.errno),
                    "The run directory %s cannot be made; the run goes on unrecorded: %s",
                    run_dir,
                    error,
                )
            return info, made

    def _open(self, info: RunInfo, engine: RunInfo, makes_directory: bool) -> Sink:
        # The engine knows names, step and rank; the caller's own words and our number are ours.
        info = replace(
            engine,
            index=info.index,
            timestamp=info.timestamp,
            fetches=info.fetches,
            feed_keys=info.feed_keys,
        )
        return self._sink_of(info, makes_directory)

    def _sink_of(self, info: RunInfo, makes_directory: bool) -> Sink:
        self._begins(info)
        return self._retained(partial(self._file_of, info, makes_directory), info)

    def _file_of(self, info: RunInfo, makes_directory: bool) -> FileSink:
        return FileSink(
            self.root / run_name(info.timestamp, info.index),
            info,
            self._files,
            meter=self.meter,
            queue=self._queue,
            max_wait_secs=self._max_wait_secs,
            makes_directory=makes_directory,
        )

    def _begins(self, info: RunInfo) -> None:
        """A run begins: the session is told where this process is."""
        self.presence.begin_run(info.index, info.global_step, info.task)

    def _retained(self, open_file: Callable[[], FileSink], info: RunInfo) -> Sink:
        """The sink of a run, which keeps it as retention says."""
        return open_file() if self.retention.keeps_all else RetainedSink(self._keeper, open_file)


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else str(getattr(key, "name", key))


def _printed(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + "…"
