"""What is recorded of a program that is only started by us, what of it is kept, and who is told of bad values.

Every run is watched; few are kept, so that a training of any length leaves a directory of a bounded size: the first
ten runs and after them ever sparser ones (20, 30, … 100, 200, …), fewer where runs are large, the last ones, and each
run in which a value turns bad for the first time, with those before it. Runs wait for this decision in memory.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tensortap.debug.copies import CopyChecks
from tensortap.debug.run_directories import FLUSH_SECS, RunDirectories
from tensortap.debug.time_budget import TimeBudget
from tensortap.hooks.args import SessionRunArgs, SessionRunContext
from tensortap.hooks.hook import SessionRunHook
from tensortap.launch.alarm import Alarm, Condition
from tensortap.launch.checking import Checking
from tensortap.launch.polite import LONG_REST_SECS, REST_SECS, Politely
from tensortap.launch.samples import LAST_RECORDS, LEAST_LAST, Samples
from tensortap.records import KeyTable, Record, RecordBatch, RunInfo
from tensortap.seam.options import RunOptions
from tensortap.sink.base import Counts, RunEnd, Sink, log
from tensortap.sink.budget import Budget, limit_from_environment
from tensortap.sink.file import FileSink
from tensortap.sink.queue import shared_queue
from tensortap.sink.retention import DiscardableSink, Keeper, RetainedSink, Retention, is_sample
from tensortap.store.updates import UpdateLog
from tensortap.watch.match import watch_run
from tensortap.watch.options import WatchOptions
from tensortap.watch.urls import Destination, file_url

__all__ = ["ScriptOptions", "ScriptWatch", "is_sample"]

JUDGE_SECS = 20.0
"""How long the end of a run waits to be told whether its bad values are meant, if it has to stop there."""

_GLANCE_SECS = 0.5
_SUSPECTED_KEPT = 32  # a program that makes new names in every run must not fill the disk


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
        disk_bytes: how much what is kept may take, graphs included, unless the environment says otherwise.
        condition: what is bad besides NaN and infinities.
        stop: end the program at the first bad value, before it is applied.
        skip_bad: leave out updates with bad gradients, and go on.
        budget: watch so few runs that the program takes at most so many times as long, as in 1.1; the others are
            looked at after each step of an optimizer. All runs by default.
        interceptor: what observes runs; see docs/native.md.
        fsync: have every kept run on the disk itself at its end.
        copy_donated: copy arguments that a call may destroy, so that a bad call can be executed again.
        compare: take checksums of what ranks hold copies of, now and then.
        joins: the directory is that of a job to which this process belongs; it counts once it has begun a run.

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
    disk_bytes: int = 1 << 30
    condition: Condition | None = None
    stop: bool = False
    skip_bad: bool = False
    budget: float | None = None
    interceptor: str | None = None
    fsync: bool = False
    copy_donated: bool = True
    compare: bool = True
    joins: bool = False


@dataclass
class Seen:
    """What went by.

    Attributes:
        runs: runs that were watched.
        steps: runs in which an optimizer stepped, watched or not.
        passes: backward passes that ended a step where there was no optimizer, watched or not.
        skipped: steps that a gradient scaler left out, because gradients were infinite.
        left_out: updates that were left out because gradients were bad, as was asked for.
        elsewhere: steps in threads other than the one that is watched.
        checked: calls of compiled functions of which only the results were looked at.
        unseen: what the program did where nothing is watched, in the engine's words, and how many times.
        records: records made.
        tensors: different tensors, as far as they were counted.
        suspected: runs in which something bad was new.
        unrecorded: of the first run that was too long to be recorded whole, its number, how many of its operations were
            left out, and how many it had; and how many such runs there were.
        kept: what became of the records of each run that is kept.
    """

    runs: int = 0
    steps: int = 0
    passes: int = 0
    skipped: int = 0
    left_out: int = 0
    elsewhere: int = 0
    checked: int = 0
    records: int = 0
    tensors: int = 0
    suspected: int = 0
    unrecorded: tuple[int, int, int, int] | None = None
    kept: list[Counts] = field(default_factory=list)
    unseen: dict[str, int] = field(default_factory=dict)

    def told(self) -> dict[str, int]:
        """As a process tells it in the session directory."""
        return {
            "seen_runs": self.runs,
            "seen_steps": self.steps,
            "seen_passes": self.passes,
            "seen_tensors": self.tensors,
            "seen_records": self.records,
            "dropped": sum(counts.lost for counts in self.kept),
        }


class ScriptWatch:
    """Watches one program: gives its runs a hook, and hands suspected runs to a judge.

    Args:
        options: how.
        judge: called in a thread of its own with the directory of a finished run in which a value is bad that was
            never bad before; whether that is more than an intended infinity.

    Attributes:
        hooks: to be called around every run; others may be added before the first.
        presence: tells the session directory what becomes of this process.
        error: what has ended the program, if that was an error.
        budget: which runs are watched, if not all of them.
        seen: counts.
        samples: which runs are kept for their number alone.
        on_stop: called before the program is ended.
        on_leave_out: called with the step whose update is left out.
        root: the session directory, claimed for this process.
        to_be_judged: how many runs that are over were suspected.
        copies: when checksums are taken of what ranks hold copies of; None for never.
        prepares: the next run comes before all models and optimizers; it is kept only if a bad value is made in it.
        keeps_preparation: it was.
        updates: where the updates go that an engine looks at; None if nobody wants them.
    """

    def __init__(self, options: ScriptOptions, judge: Callable[[Path], bool] = lambda run_dir: False) -> None:
        self.options = options
        self.seen = Seen()
        self.samples = Samples()
        self.found = threading.Event()
        self._judge = judge
        self._dumper = _ScriptDirectories(options, self)
        self.root = self._dumper.root
        self._hook = _ScriptHook(self._dumper, options.watch)
        self.hooks: list[Any] = [self._hook]
        self._waiting: queue.Queue[Path | None] = queue.Queue()
        """Runs that are to be judged; None for no more."""
        self._judging: threading.Thread | None = None
        self.on_stop: Callable[[], None] = lambda: None
        self.on_leave_out: Callable[[int], None] = lambda step: None
        self._settled = 0
        self.to_be_judged = 0
        self._hurry = threading.Event()
        self.last: str | RecordBatch = ""
        """What was recorded last: a node, or records of which the last one is of it."""
        self.presence = self._dumper.presence
        itself = weakref.ref(self)  # a presence lives as long as the directories of the watch do
        self.presence.last_node = lambda: getattr(itself(), "last_node", "")
        self.presence.counts = self.seen.told
        self.error: BaseException | None = None
        self.budget = None if options.budget is None else TimeBudget(options.budget)
        self._rest_secs = REST_SECS if self.budget is None else LONG_REST_SECS
        self.presence.budget = self.budget
        self.copies: CopyChecks | None = CopyChecks(self.root) if options.compare else None
        self._pid = os.getpid()
        self.prepares = False
        self.keeps_preparation = False
        self.updates: Checking | None = None

    @property
    def is_watching(self) -> bool:
        """Whether the run that has begun last is watched."""
        return self._hook.is_watching

    @property
    def last_node(self) -> str:
        """What was recorded last."""
        last = self.last
        if isinstance(last, str):
            return last
        return str(last.table[int(last.rows["key"][-1])].node_name) if len(last) else ""

    def wanted_of_next(self, session: Any) -> RunOptions | None:
        """What the hook asks for in the run that begins; None for nothing."""
        return self._hook.wanted(session)

    def is_settled(self, timeout: float = JUDGE_SECS) -> bool:
        """Wait until all suspected runs that are over have been judged; False if that takes too long."""
        suspected = self.to_be_judged
        if self._settled == suspected:
            return True
        shared_queue().drain(timeout)
        self._hurry.set()
        try:
            with self._waiting.all_tasks_done:
                settled = self._waiting.all_tasks_done.wait_for(
                    lambda: not self._waiting.unfinished_tasks, timeout
                )
        finally:
            self._hurry.clear()
        if settled:
            self._settled = suspected
        return settled

    def finds_unwatched(self, step: int, what: str) -> None:
        """Something is bad in a run that was not watched; all later ones are."""
        assert self.budget is not None
        self.budget.finds(step, what)
        self.presence.tell()
        self.found.set()

    def leaves_out(self, step: int) -> None:
        """The update of a step is left out."""
        self.seen.left_out += 1
        self.on_leave_out(step)

    def stopping(self) -> None:
        """The program is about to be ended."""
        self.on_stop()

    def forget_preparation(self) -> None:
        """Nothing is kept of what came before the first run, which is the first to be counted."""
        self._dumper.count_anew()

    def check_with(self, look: Callable[[], None]) -> None:
        """Have updates looked at by the engine, and the session by somebody now and then."""
        self.updates = Checking(UpdateLog(self.root, lambda: self._dumper.last_task), look)

    def suspect(self, run_dir: Path) -> None:
        """Have a finished run judged, unless the answer is known or too many wait for it already."""
        if self.found.is_set() or self._waiting.qsize() >= _SUSPECTED_KEPT:
            return
        self._waiting.put(run_dir)
        if self._judging is None:  # or it was let go
            self._judging = threading.Thread(target=self._work, name="tensortap-judge", daemon=True)
            self._judging.start()

    def close(self, timeout: float = FLUSH_SECS, waiting: Callable[[], None] = lambda: None) -> None:
        """Keep the last runs, wait until everything is written and judged; harmless when called again.

        Args:
            timeout: the longest wait for each of the two.
            waiting: called now and then while that lasts.
        """
        if os.getpid() == self._pid:
            self._dumper.keep_last()
            _wait_for(shared_queue().drain, timeout, waiting)
            if self.copies is not None:
                self.copies.close()
            self._dumper.close(_GLANCE_SECS, self.error)
            if self.updates is not None:
                self.updates.close()
            _wait_for(self.is_settled, timeout, waiting)
            if self._judging is not None:
                self._judging = None
                self._waiting.put(None)

    def _work(self) -> None:
        while True:
            run_dir = self._waiting.get()
            try:
                if run_dir is None:
                    return
                with Politely(self._hurry, self._rest_secs):
                    if not self.found.is_set() and self._judge(run_dir):
                        self.found.set()
            except Exception:
                log.warning("tensortap could not analyse %s", run_dir, exc_info=True)
            finally:
                self._waiting.task_done()


def _wait_for(is_done: Callable[[float], bool], timeout: float, waiting: Callable[[], None]) -> None:
    deadline = time.monotonic() + timeout
    while not is_done(_GLANCE_SECS) and time.monotonic() < deadline:
        waiting()


class _ScriptHook(SessionRunHook):
    """Has runs watched, all of them alike: what is asked for is worked out once, not in every run."""

    def __init__(self, dumper: _ScriptDirectories, watch: WatchOptions) -> None:
        self._dumper = dumper
        self.is_watching = False
        self._options = RunOptions()
        watch_run(self._options, watch, dumper.url)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the coming run to be watched, if it is to be."""
        options = self.wanted(run_context.session)
        return None if options is None else SessionRunArgs(None, None, options)

    def wanted(self, session: Any) -> RunOptions | None:
        """The same without the ceremony of hooks, which takes longer than a small step has operators."""
        self.is_watching = not self._dumper.skips(session)
        return self._options if self.is_watching else None


class _ScriptDirectories(RunDirectories):
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
            budget=Budget(bytes_per_session=limit_from_environment(options.disk_bytes)),
            fsync=options.fsync,
            joins=options.joins,
        )
        self._options = options
        self._watch = watch
        self._alarm = Alarm(options.condition)
        self.last_task = 0
        self.url = Destination(file_url(self.root / "run"), self._open_next)
        """Whoever opens it begins the next run."""

    def _open_next(self, engine: RunInfo) -> Sink:
        with self._lock:
            index = self._runs
            self._runs += 1
        self.last_task = engine.task
        info = engine if engine.index == index else replace(engine, index=index)
        return self._sink_of(info, makes_directory=True)

    def keep_last(self) -> None:
        """Write the runs that are held back: the program is over."""
        if self._options.keep == "all":
            self._keeper.keep_all()
        elif self._options.keep == "samples":
            self._watch.samples.left_out += self._keeper.keep_newest(LAST_RECORDS, LEAST_LAST)

    def _begins(self, info: RunInfo) -> None:
        # A process of a job counts when it trains; many load a framework and do not.
        if not (self._options.joins and self._watch.prepares):
            super()._begins(info)

    def _retained(self, open_file: Callable[[], FileSink], info: RunInfo) -> Sink:
        keep = self._options.keep == "all" or (
            self._options.keep == "samples" and self._watch.samples.wants(info.index)
        )
        return _ListeningSink(self._keeper, open_file, self._watch, self._alarm, keep, info.index)


class _ListeningSink(RetainedSink):
    """Hears of bad values as they come in, and keeps the run if there is news in them."""

    def __init__(
        self,
        keeper: Keeper,
        open_file: Callable[[], FileSink],
        watch: ScriptWatch,
        alarm: Alarm,
        keep: bool,
        index: int,
    ) -> None:
        self._watch = watch
        super().__init__(keeper, open_file)
        self._alarm = alarm
        self._index = index
        self._is_suspected = False
        self._is_preparation = watch.prepares
        self._records = 0
        self._table: KeyTable | None = None
        self._is_wanted = keep
        if keep and not self._is_preparation:
            self._keep_from_the_start()

    def _keep_from_the_start(self) -> None:
        self._fired = True
        self._to_file()

    def _opened(self) -> DiscardableSink:
        file = super()._opened()
        self._watch.seen.kept.append(file.counts)
        return file

    def write(self, record: Record) -> None:
        """Take one record, and listen to it."""
        self._records += 1
        self._watch.last = record.node_name
        self._listen(self._alarm.rings_for(record))
        super().write(record)

    def write_batch(self, batch: RecordBatch) -> None:
        """Take a batch, and listen to it."""
        self._table = batch.table
        self._records += len(batch)
        self._watch.last = batch
        if self._alarm.rings(batch):
            self._listen(True)
        super().write_batch(batch)

    def finish(self, end: RunEnd) -> None:
        """Keep the run, let it wait, or drop it if nothing happened in it."""
        if self._end is not None:
            return
        is_unused = self._is_preparation and not self._is_suspected and not self._watch.keeps_preparation
        if is_unused or (not self._records and not end.nodes):
            self._end = end
            self.forget()
            if self._is_preparation and self._watch.prepares:
                self._watch.forget_preparation()
            return
        self._watch.keeps_preparation = self._watch.keeps_preparation or self._is_preparation
        if self._is_wanted and not self._fired:  # what seemed to be a preparation was the first step
            self._keep_from_the_start()
        seen = self._watch.seen
        seen.runs += 1
        seen.records += self._records
        self._watch.samples.size = self._records
        if self._table is not None:
            tensors = len(self._table) // len(self._watch.options.watch.debug_ops)
            seen.tensors = max(seen.tensors, tensors)
        if end.unrecorded:
            executed = end.unrecorded + len(end.nodes)
            *first, runs = seen.unrecorded or (self._index, end.unrecorded, executed, 0)
            seen.unrecorded = (first[0], first[1], first[2], runs + 1)
        super().finish(end)
        if self._is_suspected and isinstance(self._file, FileSink):
            # In the queue behind everything that was written: the directory is complete then.
            file = self._file
            self._watch.to_be_judged += 1
            shared_queue().submit(lambda: self._watch.suspect(file.run_dir))

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
