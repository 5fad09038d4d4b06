"""Records to files: a run directory, written by the queue's thread from data that the records own.

Records and batches are handed over in parcels, so a crash loses at most the last twentieth of a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from tensortap.records import Record, RecordBatch, RunInfo
from tensortap.sink.base import ProcessBound, RunEnd, log, notices
from tensortap.sink.budget import Meter, RunMeter, process_meter
from tensortap.sink.parcel import PARCEL_SECS, Parcel, Size, company, size_of
from tensortap.sink.queue import DEFAULT_MAX_WAIT_SECS, WriterQueue, shared_queue
from tensortap.sink.reasons import AFTER_FORK, INTERRUPTED, QUEUE_FULL, WRITE_FAILED
from tensortap.sink.session_files import SessionFiles, files_of
from tensortap.store.layout import parse_run_name, run_name
from tensortap.store.writer import RunWriter

__all__ = ["FileSink", "open_file_sink"]

Item = Record | RecordBatch


class FileSink(ProcessBound):
    """Writes one run to its directory, off the training thread.

    Args:
        run_dir: the directory of the run.
        info: the run.
        files: what it shares with the other runs of its root.
        meter: the budget its bytes count against; that of the process by default.
        queue: does the writing; that of the process by default.
        max_wait_secs: how long a full queue may hold up training before records are dropped and counted.
        makes_directory: the directory is not there yet. If another rank has taken its name, the run moves on by a
            microsecond.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> sink = FileSink(root / "run_17_0", RunInfo(0, 0, 17), SessionFiles(root))
    >>> sink.write(Record("x", 0, "DebugNanCount", "/device:CPU:0", 18, "int64", (1,), bytes(8)))
    >>> sink.finish(RunEnd())
    >>> sink.flush(), sink.counts.written
    (True, 1)
    """

    def __init__(
        self,
        run_dir: str | Path,
        info: RunInfo,
        files: SessionFiles | None = None,
        *,
        meter: Meter | None = None,
        queue: WriterQueue | None = None,
        max_wait_secs: float = DEFAULT_MAX_WAIT_SECS,
        makes_directory: bool = False,
    ) -> None:
        super().__init__()
        self.run_dir = Path(run_dir)
        self.info = info
        self._files = files or SessionFiles(self.run_dir.parent)
        self._meter: RunMeter = (meter or process_meter()).start_run()
        self._queue = queue or shared_queue()
        self._max_wait_secs = max_wait_secs
        self._makes_directory = makes_directory
        self._lock = threading.Lock()
        self._parcel: Parcel[Item] = Parcel()
        self._finished = False
        self._writer: RunWriter | None = None
        self._queue.submit(self._open)

    # --- in the training thread --------------------------------------------------------------------

    def write(self, record: Record) -> None:
        """Take one record; it is dropped, and counted, if the budget or the queue has no room."""
        if self._is_orphan():
            self.counts.drop(AFTER_FORK)
            return
        size = size_of(record)
        refusal = self._meter.refusal(size[1])
        if refusal is None:
            self._add(record, size)
        else:
            self.counts.drop(refusal)
            notices.warn(
                (refusal, self._files.root, self._meter.session.limit),
                "%s (%d bytes) is not written: %s. Further records over the limit are only counted.",
                record.watch_key,
                size[1],
                self._meter.explain(refusal),
            )

    def write_batch(self, batch: RecordBatch) -> None:
        """Take a batch whole, or, if the budget has no room for all of it, the records that fit."""
        if self._is_orphan():
            self.counts.drop(AFTER_FORK, len(batch))
            return
        size = size_of(batch)
        if self._meter.refusal(size[1]) is None:
            self._add(batch, size)
        else:
            for record in batch:
                self.write(record)

    def _add(self, item: Item, size: Size) -> None:
        with self._lock:
            parcel = self._parcel
            parcel.add(item, size)
            if parcel.is_full:
                self._send()
            elif len(parcel.items) == 1:
                self._queue.call_later(PARCEL_SECS, lambda: self._collect(parcel))

    def finish(self, end: RunEnd) -> None:
        """Complete the run directory once everything before has been written."""
        if self._is_orphan():
            return
        with self._lock:
            if self._finished:
                return
            self._finished = True
            self._send()
        self.counts.muted, self.counts.failed = end.muted, end.failed
        self.counts.unrecorded = end.unrecorded
        self._queue.submit(lambda: self._complete(end))

    def discard(self) -> None:
        """Delete the run directory, finished or not; its bytes count no more."""
        if not self._is_orphan():
            self._finished = True
            self._parcel = Parcel()
            self._meter.refund()
            self._queue.submit(self._remove)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything taken so far is on its way to the disk."""
        if self._is_orphan():
            return True
        with self._lock:
            self._send()
        return self._queue.drain(timeout)

    def close(self) -> None:
        """Finish the run if nobody has."""
        self.finish(RunEnd(error="The sink was closed before the run ended."))

    def _send(self) -> None:
        parcel, self._parcel = self._parcel, Parcel()
        if not parcel.items:
            return
        try:
            if self._queue.submit(lambda: self._write(parcel), parcel.weight, self._max_wait_secs):
                return
        except BaseException:  # the user lost patience with a slow disk
            self.counts.drop(INTERRUPTED, parcel.records)
            self._meter.refund(parcel.value_bytes)
            raise
        self.counts.drop(QUEUE_FULL, parcel.records)
        self._meter.refund(parcel.value_bytes)
        notices.warn(
            (QUEUE_FULL, self._files.root),
            "The disk under %s is too slow: records are dropped and counted, so that training goes on.",
            self._files.root,
        )

    # --- in the writer thread ----------------------------------------------------------------------

    def _open(self) -> None:
        try:
            if self._makes_directory:
                self._make_directory()
            self._writer = self._files.writer(self.run_dir, self.info)
        except Exception as error:
            self._say(error)

    def _make_directory(self) -> None:
        self.run_dir.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                self.run_dir.mkdir()
            except FileExistsError:
                self.info = replace(self.info, timestamp=self.info.timestamp + 1)
                self.run_dir = self.run_dir.with_name(run_name(self.info.timestamp, self.info.index))
            else:
                return

    def _collect(self, parcel: Parcel[Item]) -> None:
        """Take a parcel that has become old although it is not full: the step may hang, or kill us."""
        with self._lock:
            if self._parcel is not parcel:
                return
            self._parcel = Parcel()
        self._write(parcel)

    def _write(self, parcel: Parcel[Item]) -> None:
        writer = self._writer
        if writer is None:
            self.counts.drop(WRITE_FAILED, parcel.records)
            return
        for _, group in groupby(parcel.items, _company):
            items = list(group)
            self._write_records(writer, [item for item in items if isinstance(item, Record)])
            batches = [item for item in items if isinstance(item, RecordBatch)]
            if batches:
                self._write_batch(writer, RecordBatch.joined(batches))

    def _write_batch(self, writer: RunWriter, batch: RecordBatch) -> None:
        for part in batch.per_device():
            try:
                writer.write_batch(part)
            except Exception:
                self._write_singly(writer, part)
            else:
                self.counts.wrote(part.nbytes, len(part))

    def _write_records(self, writer: RunWriter, records: Iterable[Record]) -> None:
        devices: dict[str, list[Record]] = {}
        for record in records:
            devices.setdefault(record.device, []).append(record)
        for batch in devices.values():
            try:
                writer.write_many(batch)
            except Exception:
                self._write_singly(writer, batch)
            else:
                self.counts.wrote(sum(record.nbytes for record in batch), len(batch))

    def _write_singly(self, writer: RunWriter, records: Iterable[Record]) -> None:
        """After a failed batch, of which nothing was written: what still fits, each counted for itself."""
        for record in records:
            try:
                writer.write(record)
            except Exception as error:
                self.counts.drop(WRITE_FAILED)
                self._say(error)
            else:
                self.counts.wrote(record.nbytes)

    def _complete(self, end: RunEnd) -> None:
        writer = self._writer
        if writer is None:
            return
        counts = self.counts.as_dict()
        nodes, sources = self._files.described(end.nodes)
        try:
            writer.finish(
                nodes, counts, end.error, sources, end.circumstances, self._meter.session.refusal_of_graph
            )
        except Exception as error:
            self._say(error)
            writer.close()

    def _remove(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.abandon()
        except Exception as error:
            self._say(error)

    def _say(self, error: Exception) -> None:
        notices.warn(
            (WRITE_FAILED, self._files.root, getattr(error, "errno", type(error))),
            "Writing under %s failed; what cannot be written is counted and training goes on: %r",
            self._files.root,
            error,
        )


def _company(item: Item) -> object:
    """Equal for what is written together: single records, and small batches of one table."""
    return Record if isinstance(item, Record) else company(item)


def open_file_sink(path: str, info: RunInfo) -> FileSink:
    """The sink of a `file://` URL that nobody prepared.

    A path whose last part is `run_<µs>_<number>` is a run directory. Any other path is a session root, in
    which each run gets a directory of its own.

    >>> import tempfile
    >>> sink = open_file_sink(tempfile.mkdtemp(), RunInfo(index=0, global_step=0, timestamp=17))
    >>> sink.finish(RunEnd())
    >>> sink.flush(), sink.run_dir.name
    (True, 'run_17_0')
    """
    target = Path(path).expanduser()
    if parse_run_name(target.name) is not None:
        return FileSink(target, info, files_of(target.parent))
    # A name that is taken moves on by a microsecond, so that two runs never meet in one directory.
    while True:
        run_dir = target / run_name(info.timestamp, info.index)
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            info = replace(info, timestamp=info.timestamp + 1)
        except OSError as error:
            log.warning("The directory %s cannot be made: %s", run_dir, error)
            break
        else:
            break
    return FileSink(run_dir, info, files_of(target))
