"""What is recorded of a program that is only started by us, what of it is kept, and who is told of bad values.

Every run is watched; few are kept, so that a training of any length leaves a directory of a bounded size: the first
ten runs and after them ever sparser ones (20, 30, … 100, 200, …), the last ones, and each run in which a value turns
bad for the first time, with those before it. Runs wait for this decision in memory.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tensortap.debug.dumper import FLUSH_SECS, Dumper, step_of
from tensortap.debug.script.alarm import Alarm, Condition
from tensortap.debug.script.time_budget import TimeBudget
from tensortap.engines.options import RunOptions
from tensortap.records import Record, RecordBatch, RunInfo
from tensortap.run.args import SessionRunArgs, SessionRunContext
from tensortap.run.hooks import SessionRunHook
from tensortap.sink import destinations
from tensortap.sink.base import Counts, RunEnd, Sink, log
from tensortap.sink.file import FileSink
from tensortap.sink.queue import shared_queue
from tensortap.sink.retention import Keeper, RetainedSink, Retention
from tensortap.watch.match import watch_run
from tensortap.watch.options import WatchOptions
from tensortap.watch.urls import file_url

__all__ = ["ScriptOptions", "ScriptWatch", "is_sample"]

JUDGE_SECS = 20.0
"""How long the end of a run waits to be told whether its bad values are meant, if it has to stop there."""

_SUSPECTED_KEPT = 32  # a program that makes new names in every run must not fill the disk
_WAITING_LIMIT = 2


@dataclass(frozen=True)
class ScriptOptions:
    """How to watch a program.

    Attributes:
        root: the session directory.
        watch: which tensors, and what of them.
        steps: watch only these steps.
        every: watch every so many runs.
        last: how many runs before a bad one, and how many at the end, are kept.
        keep: which runs are kept even if all is well: the last ones and, from all of the program, `samples` at ever
            larger distances; or `all`, or `none`.
        memory_bytes: how much memory runs may take that wait to be kept.
        condition: what is bad besides NaN and infinities.
        stop: end the program after the run with the first bad value.
        budget: watch so few runs that the program takes at most so many times as long, as in 1.1; the others are
            looked at after each step of an optimizer. All runs by default.
        interceptor: what observes runs; see docs/native.md.

    >>> ScriptOptions(Path("dumps"), WatchOptions("DebugNumericSummary")).last
    20
    """

    root: Path
    watch: WatchOptions
    steps: Container[int] | None = None
    every: int | None = None
    last: int = 20
    keep: Literal["samples", "all", "none"] = "samples"
    memory_bytes: int = 256 << 20
    condition: Condition | None = None
    stop: bool = False
    budget: float | None = None
    interceptor: str | None = None


def is_sample(index: int) -> bool:
    """Whether a run is kept for its number alone.

    >>> [index for index in range(1, 400) if is_sample(index)]
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300]
    """
    return not str(index)[1:].strip("0")


@dataclass
class Seen:
    """What went by.

    Attributes:
        runs: runs that were watched.
        steps: runs in which an optimizer stepped, watched or not.
        skipped: steps that a gradient scaler left out, because gradients were infinite.
        elsewhere: steps in threads other than the one that is watched.
        records: records made.
        tensors: different tensors, as far as they were counted.
        suspected: runs in which something bad was new.
        kept: what became of the records of each run that is kept.
    """

    runs: int = 0
    steps: int = 0
    skipped: int = 0
    elsewhere: int = 0
    records: int = 0
    tensors: int = 0
    suspected: int = 0
    kept: list[Counts] = field(default_factory=list)


class ScriptWatch:
    """Watches one program: gives its runs a hook, and hands suspected runs to a judge.

    Args:
        options: how.
        judge: called in a thread of its own with the directory of a finished run in which a value is bad that was
            never bad before; whether that is more than an intended infinity.

    Attributes:
        hooks: to be called around every run; others may be added before the first.
        records: how many records the run that has begun last has made so far.
        budget: which runs are watched, if not all of them.
        on_records: called, in any thread, when records come in.
        seen: counts.
        root: the session directory, claimed for this process.
    """

    def __init__(self, options: ScriptOptions, judge: Callable[[Path], bool] = lambda run_dir: False) -> None:
        self.options = options
        self.seen = Seen()
        self.found = threading.Event()
        self._judge = judge
        self._dumper = _ScriptDumper(options, self)
        self.root = self._dumper.root
        self._hook = _ScriptHook(self._dumper, options.watch)
        self.hooks: list[Any] = [self._hook]
        self._waiting: queue.Queue[Path] = queue.Queue()
        self._judging: threading.Thread | None = None
        self._settled = 0
        self.budget = None if options.budget is None else TimeBudget(options.budget)
        self.on_records: Callable[[], None] = lambda: None
        self.records = 0
        self._pid = os.getpid()

    @property
    def is_watching(self) -> bool:
        """Whether the run that has begun last is watched."""
        return self._hook.is_watching

    def is_settled(self, timeout: float = JUDGE_SECS) -> bool:
        """Wait until all suspected runs so far have been judged; False if that takes too long."""
        if self._settled == self.seen.suspected:
            return True
        self._settled = self.seen.suspected
        shared_queue().drain(timeout)
        with self._waiting.all_tasks_done:
            return self._waiting.all_tasks_done.wait_for(lambda: not self._waiting.unfinished_tasks, timeout)

    def suspect(self, run_dir: Path) -> None:
        """Have a finished run judged, unless the answer is known or too many wait for it already."""
        if self.found.is_set() or self._waiting.qsize() >= _WAITING_LIMIT:
            return
        self._waiting.put(run_dir)
        if self._judging is None:
            self._judging = threading.Thread(target=self._work, name="tensortap-judge", daemon=True)
            self._judging.start()

    def close(self, timeout: float = FLUSH_SECS) -> None:
        """Keep the last runs, wait until everything is written and judged; harmless when called again."""
        if os.getpid() == self._pid:
            self._dumper.keep_last()
            self._dumper.close(timeout)
            self.is_settled(timeout)

    def _work(self) -> None:
        while True:
            run_dir = self._waiting.get()
            try:
                if not self.found.is_set() and self._judge(run_dir):
                    self.found.set()
            except Exception:
                log.warning("tensortap could not analyse %s", run_dir, exc_info=True)
            finally:
                self._waiting.task_done()


class _ScriptHook(SessionRunHook):
    """Has runs watched, all of them alike: what is asked for is worked out once, not in every run."""

    def __init__(self, dumper: _ScriptDumper, watch: WatchOptions) -> None:
        self._dumper = dumper
        self.is_watching = False
        options = RunOptions()
        watch_run(options, watch, dumper.url)
        self._arguments = SessionRunArgs(None, None, options)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the coming run to be watched, if it is to be."""
        self.is_watching = not self._dumper.skips(step_of(run_context.session))
        return self._arguments if self.is_watching else None


class _ScriptDumper(Dumper):
    """Gives every run a sink that listens."""

    def __init__(self, options: ScriptOptions, watch: ScriptWatch) -> None:
        super().__init__(
            options.root,
            retention=Retention(
                options.steps,
                options.every,
                when="inf_or_nan",
                last=options.last,
                memory_bytes=options.memory_bytes,
            ),
        )
        self._options = options
        self._watch = watch
        self._alarm = Alarm(options.condition)
        self.url = file_url(self.root / "run")
        """Whoever opens it begins the next run."""
        destinations.prepare(self.url, self._open_next)

    def close(self, timeout: float | None = FLUSH_SECS) -> bool:
        """Wait for what is kept."""
        destinations.forget(self.url)
        return super().close(timeout)

    def _open_next(self, engine: RunInfo) -> Sink:
        with self._lock:
            index = self._runs
            self._runs += 1
        return self._sink_of(replace(engine, index=index), makes_directory=True)

    def keep_last(self) -> None:
        """Write the runs that are held back: the program is over."""
        if self._options.keep != "none":
            self._keeper.keep_all()

    def _retained(self, open_file: Callable[[], FileSink], info: RunInfo) -> Sink:
        keep = self._options.keep == "all" or (self._options.keep == "samples" and is_sample(info.index))
        return _ListeningSink(self._keeper, open_file, self._watch, self._alarm, keep)


class _ListeningSink(RetainedSink):
    """Hears of bad values as they come in, and keeps the run if there is news in them."""

    def __init__(
        self,
        keeper: Keeper,
        open_file: Callable[[], FileSink],
        watch: ScriptWatch,
        alarm: Alarm,
        keep: bool,
    ) -> None:
        super().__init__(keeper, lambda: self._opened(open_file))
        self._watch = watch
        self._alarm = alarm
        self._is_suspected = False
        self._records = 0
        self._tensors = 0
        watch.records = 0
        if keep:
            self._fired = True
            self._to_file()

    def _opened(self, open_file: Callable[[], FileSink]) -> FileSink:
        file = open_file()
        self._watch.seen.kept.append(file.counts)
        return file

    def write(self, record: Record) -> None:
        """Take one record, and listen to it."""
        self._count(1)
        self._listen(self._alarm.rings_for(record))
        super().write(record)

    def write_batch(self, batch: RecordBatch) -> None:
        """Take a batch, and listen to it."""
        self._tensors = len(batch.table) // len(self._watch.options.watch.debug_ops)
        self._count(len(batch))
        self._listen(self._alarm.rings(batch))
        super().write_batch(batch)

    def finish(self, end: RunEnd) -> None:
        """Keep the run, let it wait, or drop it if nothing happened in it."""
        if self._end is not None:
            return
        if not self._records and not end.nodes:
            self._end = end
            self.forget()
            return
        seen = self._watch.seen
        seen.runs += 1
        seen.records += self._records
        seen.tensors = max(seen.tensors, self._tensors)
        super().finish(end)
        if self._is_suspected and isinstance(self._file, FileSink):
            # In the queue behind everything that was written: the directory is complete then.
            file = self._file
            shared_queue().submit(lambda: self._watch.suspect(file.run_dir))

    def _count(self, records: int) -> None:
        self._records += records
        self._watch.records = self._records
        self._watch.on_records()

    def _listen(self, is_news: bool) -> None:
        if is_news and not self._is_suspected:
            seen = self._watch.seen
            seen.suspected += 1
            self._is_suspected = True
            if not self._fired and seen.suspected <= _SUSPECTED_KEPT:
                self._fire()

    # What the filter of retention would decide is decided by listening.

    def _has_bad(self, batch: RecordBatch) -> bool:
        return False

    def _is_bad(self, record: Record) -> bool:
        return False
