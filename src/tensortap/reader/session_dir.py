"""`SessionDir`: all runs of a session root, and the health of a tensor over them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.analyze.coverage import Coverage
from tensortap.errors import DamagedValueError, DumpFormatError, NotThereError, UsageError
from tensortap.pill import PILL_OP, PILL_SIZE
from tensortap.reader.coverage import coverage_of_session
from tensortap.reader.dump_dir import DebugDumpDir
from tensortap.store.description import read_description
from tensortap.store.health import HealthHistory, history_dtype
from tensortap.store.layout import INDEX_SUFFIX, parse_run_name
from tensortap.store.session import health_files, list_runs
from tensortap.store.stored_run import StoredRun, StoredTensor, open_run
from tensortap.wire.values import InconvertibleTensorProto

__all__ = ["RunRef", "SessionDir"]


_MOST_ROW_BYTES = (1 << 31) - 1 - 64
"""NumPy has no larger elements, and there are four columns more."""

_SETTLED_NS = 2_000_000_000
"""A directory that changed so long ago would tell if it had changed again: the clocks of file systems are coarse."""


@dataclass(frozen=True, slots=True)
class RunRef:
    """One run of a session, not opened yet.

    Attributes:
        root: the session root.
        name: name of the run directory.
        index: number of the run in its task's session.
        timestamp: microseconds since the epoch at its start.
    """

    root: Path
    name: str
    timestamp: int
    index: int

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.root / self.name

    @property
    def index_bytes(self) -> int:
        """How long the lists of what it has recorded are by now."""
        try:
            return sum(each.stat().st_size for each in self.path.glob(f"*{INDEX_SUFFIX}"))
        except OSError:
            return 0

    def open(self, *, validate: bool = True) -> DebugDumpDir:
        """The dump of the run."""
        return DebugDumpDir(self.path, validate=validate)


class SessionDir:
    """A session root, finished or growing, written by one task or by many.

    Runs that cannot be read are left out of answers and named in `notices`.

    >>> import tempfile
    >>> from tensortap.records import RunInfo
    >>> from tensortap.store import SessionStore
    >>> root = tempfile.mkdtemp()
    >>> with SessionStore(root) as store:
    ...     store.new_run(RunInfo(index=0, global_step=3, timestamp=17)).finish({}, {})
    >>> session = SessionDir(root)
    >>> [run.name for run in session.runs]
    ['run_17_0']
    >>> session.run(0).core_metadata.global_step
    3
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser()
        self.runs: list[RunRef] = []
        self.notices: list[str] = []
        self._listed: int | None = None
        self.refresh()

    def refresh(self) -> bool:
        """Look for runs added or removed since; whether there are any."""
        changed = _when_changed(self.root)
        if changed is not None and changed == self._listed:
            return False
        self._listed = None if changed is None or time.time_ns() - changed < _SETTLED_NS else changed
        found, self.notices = list_runs(self.root)
        before, self.runs = self.runs, [RunRef(self.root, *each) for each in found]
        return before != self.runs

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[RunRef]:
        return iter(self.runs)

    def run(self, index: int, *, task: int | None = None, validate: bool = True) -> DebugDumpDir:
        """The run with this number; a negative one counts from the last run in time.

        Raises:
            LookupError: there is no such run.
            ValueError: several tasks have one, and none was named.
        """
        if index < 0 and task is None:
            if -index > len(self.runs):
                raise NotThereError(
                    f"There is no run {index} in {self.root}: it has {len(self.runs)} run(s)."
                )
            return self.runs[index].open(validate=validate)
        matching = [each.path for each in self.runs if each.index == index]
        opened = [open_run(path) for path in matching] if len(matching) > 1 or task is not None else []
        if task is not None:
            matching = [source.path for source in opened if source.task == task]
        if not matching:
            numbers = sorted({each.index for each in self.runs})
            said = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
            raise NotThereError(
                f"There is no run {index}{'' if task is None else f' of task {task}'}; there are {said}."
            )
        if len(matching) > 1 and task is None:
            tasks = sorted({source.task for source in opened})
            if len(tasks) > 1:
                raise UsageError(f"Run {index} exists in tasks {tasks}; say which one with task=.")
        return DebugDumpDir(matching[-1], validate=validate)

    def tasks(self) -> list[int]:
        """Ranks that wrote a health history here."""
        return sorted(health_files(self.root))

    def coverage(self) -> Coverage:
        """How much of the job was seen, and what became of its ranks."""
        return coverage_of_session(self)

    def suspects(self) -> set[str]:
        """Names of the runs that may hold NaN or infinities: all but those whose pills say that they do not."""
        cleared: set[str] = set()
        for _, history in self._histories():
            with history:
                try:
                    recorded = history.tensors()
                    judged = {(name, device) for name, op, device in recorded if op == PILL_OP}
                    if all((name, device) in judged for name, _, device in recorded):
                        cleared |= set(history.runs()) - history.bad_runs()
                except DumpFormatError as error:
                    self._note(str(error))
        return {run.name for run in self.runs} - cleared

    def not_looked_at(self) -> list[str]:
        """Names of the tensors that were recorded without their elements being read, in any run."""
        found: set[str] = set()
        for _, history in self._histories():
            with history:
                try:
                    found |= history.unread_tensors()
                except DumpFormatError as error:
                    self._note(str(error))
        return sorted(found)

    def counts(self) -> dict[str, int]:
        """What the writers of all runs counted together, such as records muted or dropped."""
        total: dict[str, int] = {}
        for run in self.runs:
            try:
                counted = read_description(run.path).counts
            except (OSError, ValueError):
                continue  # tfdbg's layout counts nothing, and what is damaged is noted by who opens it
            for reason, number in counted.items():
                total[reason] = total.get(reason, 0) + number
        return total

    def tensors(self, debug_op: str | None = None) -> list[str]:
        """Names of all tensors that any run recorded, or that one debug op recorded."""
        known: set[tuple[str, str, str]] = set()
        logged: set[str] = set()
        for _, history in self._histories():
            with history:
                known |= history.tensors()
                logged |= set(history.runs())
        for source in self._open(run for run in self.runs if run.name not in logged):
            for data in source.tensors.values():
                known |= {(each.tensor_name, each.debug_op, each.device) for each in data}
        return sorted({name for name, op, _ in known if debug_op in (None, op)})

    def history(
        self, tensor_name: str, debug_op: str = PILL_OP, *, device_name: str | None = None
    ) -> npt.NDArray[Any]:
        """What one debug op said about one tensor in every run, in the order of time.

        Args:
            tensor_name: `node:slot`.
            debug_op: health pills come from the session's history file; other debug ops are read run by run.
            device_name: leave out what other devices recorded under the same name.

        Returns:
            A structured array with the columns `task`, `run`, `step`, `timestamp`; then for pills the columns
            `initialized`, `elements`, `nan`, … of `PILL_COLUMNS`, else `value`.
        """
        if debug_op != PILL_OP:
            return self._values(tensor_name, debug_op, device_name)
        parts = []
        logged: set[str] = set()
        for task, history in self._histories():
            with history:
                try:
                    pills = history.pills(tensor_name, device_name)
                    logged |= set(history.runs())
                except DumpFormatError as error:
                    self._note(str(error))
                    continue
            pills["task"] = task
            parts.append(pills)
        # Runs that died, still run, or could not reach the history have their pills in their own index.
        unlogged = [run for run in self.runs if run.name not in logged]
        rows = [
            row for row, pill in self._records(unlogged, tensor_name, PILL_OP, device_name, _pill_of) if pill
        ]
        parts.append(np.array(rows, history_dtype()))
        merged = np.concatenate(parts)
        return merged[np.argsort(merged["timestamp"], kind="stable")]

    def each_value(self, tensor_name: str, debug_op: str) -> Iterator[tuple[int, int, int, int, Any]]:
        """Task, run, step, timestamp and value of a tensor in every run; one value in memory at a time."""
        for row, _ in self._records(self.runs, tensor_name, debug_op, None, _value_of):
            yield row[0], row[1], row[2], row[3], row[4]

    def _values(self, tensor: str, debug_op: str, device: str | None) -> npt.NDArray[Any]:
        rows = [row for row, _ in self._records(self.runs, tensor, debug_op, device, _value_of)]
        forms = {(np.shape(row[-1]), np.asarray(row[-1]).dtype) for row in rows}
        shape, kind = forms.pop() if len(forms) == 1 else ((), np.dtype(object))
        if kind.itemsize * math.prod(shape) > _MOST_ROW_BYTES:
            shape, kind = (), np.dtype(object)
        places = [(name, history_dtype()[name]) for name in ("task", "run", "step", "timestamp")]
        values = np.empty(len(rows), np.dtype([*places, ("value", kind, shape)]))
        for place, row in enumerate(rows):
            values[place] = row
        return values[np.argsort(values["timestamp"], kind="stable")]

    def _records(
        self, runs: list[RunRef], tensor: str, debug_op: str, device: str | None, convert: Any
    ) -> Iterator[tuple[tuple[Any, ...], bool]]:
        for source in self._open(runs):
            for where, data in source.tensors.items():
                if device is not None and where != device:
                    continue
                for each in data:
                    if each.debug_op == debug_op and each.tensor_name == tensor:
                        try:
                            values = convert(each)
                        except DamagedValueError as error:
                            self._note(str(error))
                            continue
                        run, step = _numbers(source)
                        yield (source.task, run, step, each.timestamp, *values), bool(values)

    def _open(self, runs: Any) -> Iterator[StoredRun]:
        for run in runs:
            try:
                yield open_run(run.path)
            except (OSError, ValueError) as error:
                self._note(f"The run {run.name} cannot be read: {error}")

    def _histories(self) -> Iterator[tuple[int, HealthHistory]]:
        for task, path in sorted(health_files(self.root).items()):
            try:
                history = HealthHistory(path)
                history.check()
            except DumpFormatError as error:
                self._note(f"{error} The runs themselves are read instead.")
            else:
                yield task, history

    def _note(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)


def _numbers(source: StoredRun) -> tuple[int, int]:
    """Run and step. TensorFlow's own number counts runs that were not debugged, too: a run goes by its directory."""
    first = source.core_metadata[0] if source.core_metadata else None
    named = parse_run_name(source.path.name)
    index = named[1] if named else -1 if first is None else first.session_run_index
    return index, -1 if first is None else first.global_step


def _pill_of(stored: StoredTensor) -> tuple[float, ...]:
    value = stored.load()
    if isinstance(value, InconvertibleTensorProto) or value.size < PILL_SIZE or value.dtype.kind != "f":
        return ()
    return tuple(value.reshape(-1)[:PILL_SIZE].tolist())


def _value_of(stored: StoredTensor) -> tuple[Any]:
    return (stored.load(),)


def _when_changed(directory: Path) -> int | None:
    try:
        return directory.stat().st_mtime_ns
    except OSError:
        return None
