"""One run as it is received: its directory is written, and what became of its records is counted."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tensortap.errors import TensortapError
from tensortap.records import Circumstances, Record, RecordBatch, RunInfo
from tensortap.server.job import Job
from tensortap.server.reception import Reception
from tensortap.wire.debug_service import WireError
from tensortap.wire.events import StreamMetadata

__all__ = ["CannotStore", "ReceivedRun", "run_info"]

_TASK = re.compile(r"/task:(\d{1,9})(?:/|$)")
_A_DAY = 86_400_000_000
"""In microseconds: more than clocks differ. Whoever is from the future would never be too old."""
_INDEX_BYTES = 128
"""What a record takes on disk besides its value, roughly."""
_DISK_BUDGET = "disk budget of the server"
_WRITE_FAILED = "write failed"


class CannotStore(TensortapError, RuntimeError):
    """There is no room for a run, or no right to make its directory."""


def run_info(metadata: StreamMetadata | None, device: str, now: int) -> RunInfo:
    """What is known of a run from what its client says, and from the device of its first graph or tensor.

    >>> run_info(None, "/job:worker/task:3/device:CPU:0", now=17).task
    3
    """
    info = metadata.info if metadata is not None else RunInfo(-1, -1, now)
    if not 0 < info.timestamp < now + _A_DAY:
        info = replace(info, timestamp=now)
    found = _TASK.search(device)
    is_ours = metadata is not None and metadata.process
    return replace(info, task=int(found[1])) if found and not is_ours else info


class ReceivedRun:
    """Writes one run of a job.

    Args:
        reception: of the server.
        job: whose run it is.
        info: the run.

    Attributes:
        written: how many records were.

    Raises:
        CannotStore: the directory of the run cannot be made.
    """

    def __init__(self, reception: Reception, job: Job, info: RunInfo) -> None:
        self._reception = reception
        self._job = job
        self._counts: Counter[str] = Counter()
        self.written = 0
        try:
            self._writer = job.new_run(info)
        except OSError as error:
            reception.statistics.add(failures=1)
            problem = CannotStore(f"The server cannot make a run directory: {error.strerror}.")
            reception.say_once(("run", error.errno), "%s Such runs are refused and counted.", problem)
            raise problem from error
        reception.statistics.add(runs=1)

    @classmethod
    def begun_now(
        cls, reception: Reception, job: Job, metadata: StreamMetadata | None, device: str
    ) -> ReceivedRun:
        """A run whose first event has just come."""
        return cls(reception, job, run_info(metadata, device, time.time_ns() // 1000))

    @property
    def name(self) -> str:
        """Of its directory."""
        return self._writer.path.name

    @property
    def info(self) -> RunInfo:
        """What is known of the run."""
        return self._writer.info

    def write(self, record: Record) -> None:
        """Write a record, or count it as dropped."""
        if not self._reception.disk.has_room(record.nbytes + _INDEX_BYTES):
            self._dropped(_DISK_BUDGET, 1)
            return
        self._write(record)

    def write_batch(self, batch: RecordBatch) -> None:
        """Write many records, or count them as dropped.

        Raises:
            WireError: the batch is none that can be written.
        """
        nbytes = batch.nbytes
        if not self._reception.disk.has_room(nbytes + _INDEX_BYTES * len(batch)):
            self._dropped(_DISK_BUDGET, len(batch))
            return
        try:
            self._writer.write_batch(batch)
            self._wrote(len(batch), nbytes)
        except OSError:
            for record in batch:
                self._write(record)
        except ValueError as error:
            raise WireError(str(error)) from error

    def refer(self, graphs: Mapping[str, str], sources: Mapping[str, str] | None = None) -> None:
        """Name the stored graphs, by device, and source files that belong to the run."""
        try:
            self._writer.refer(graphs, sources or {})
        except OSError as error:
            self.failed(error)

    def end(
        self, said: Mapping[str, int], error: str | None, circumstances: Mapping[str, Any] | None = None
    ) -> None:
        """Complete the run; `said` is what its client has counted, and the circumstances what it knows besides."""
        lost = sum(number for name, number in self._counts.items() if name.startswith("dropped: "))
        dropped = said.get("dropped", 0) + lost
        known = Circumstances.from_dict(dict(circumstances or {}))
        self._job.end_run(self._writer, {**said, **self._counts, "dropped": dropped}, error, known)

    def failed(self, error: OSError, records: int = 0) -> None:
        """Count what could not be written, and say so once."""
        self._dropped(_WRITE_FAILED, records)
        self._reception.say_once(error.errno, "Writing failed; what cannot be written is counted: %s", error)

    def _write(self, record: Record) -> None:
        try:
            self._writer.write(record)
            self._wrote(1, record.nbytes)
        except OSError as error:
            self.failed(error, 1)

    def _wrote(self, records: int, nbytes: int) -> None:
        self.written += records
        self._counts["written"] += records
        self._counts["written_bytes"] += nbytes
        self._reception.statistics.add(records=records, record_bytes=nbytes)

    def _dropped(self, reason: str, records: int) -> None:
        self._counts[f"dropped: {reason}"] += records
        self._reception.statistics.add(dropped=records)
