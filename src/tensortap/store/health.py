"""The health history of one task: the pills of all its runs in one SQLite file.

A run adds one row that holds all its pills. When enough runs have gathered they are regrouped into one row
per tensor, so that writing a run touches few pages however many tensors it has, and reading one tensor over
thousands of runs touches few pages too. Each task writes its own file; runs whose pills are not here (their
process died, or the disk was full) are found in their run directories instead.
"""

from __future__ import annotations

import sqlite3
import struct
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.errors import DumpFormatError
from tensortap.pill import PILL_COLUMNS, PILL_OP, PILL_SIZE, are_bad, are_unread
from tensortap.records import KeyTable, RunInfo, tensor_name
from tensortap.store.layout import health_path

__all__ = ["ROWS_AT_ONCE", "HealthHistory", "HealthLog", "Pill", "PillBlock"]

REGROUP_AFTER = 64
"""Runs that gather before they are regrouped: a compromise between work per run and pages per read."""

ROWS_AT_ONCE = 1024
"""Regrouped rows that are read together: some megabytes."""

_VERSION = 2
"""1 had no compressed rows."""

_COMPRESSED_FROM = 64 << 10
"""Bytes of a run's pills. The lengths tell the two apart: rows as they are have a multiple of that of a row."""

_MOST_VARIABLES = 900
"""Of one statement; SQLite may be built to take 999."""

_MOST_ROWS = 1 << 24
"""Of one run; so many pills are not kept."""

_ROW = np.dtype([("tensor", "<u4"), ("run", "<u4"), ("timestamp", "<i8"), ("pill", "<f8", (PILL_SIZE,))])
_PACKED_ROW = struct.Struct(f"<IIq{PILL_SIZE}d")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, name TEXT UNIQUE, run INTEGER, step INTEGER,
    timestamp INTEGER);
CREATE TABLE IF NOT EXISTS tensors (id INTEGER PRIMARY KEY, name TEXT, debug_op TEXT, device TEXT,
    UNIQUE (name, debug_op, device));
CREATE TABLE IF NOT EXISTS recent (run INTEGER PRIMARY KEY, pills BLOB);
CREATE TABLE IF NOT EXISTS grouped (tensor INTEGER, first_run INTEGER, pills BLOB);
CREATE INDEX IF NOT EXISTS grouped_by_tensor ON grouped (tensor, first_run);
"""


@dataclass(frozen=True, slots=True)
class Pill:
    """One health pill on its way into the history."""

    tensor: str
    device: str
    timestamp: int
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PillBlock:
    """The pills of a batch on their way into the history.

    Attributes:
        table: what key numbers mean.
        keys: of all records of the batch, pills or not.
        pill_keys: of the pills.
        timestamps: of the pills.
        values: float64[pills, 14].
    """

    table: KeyTable
    keys: npt.NDArray[np.uint32]
    pill_keys: npt.NDArray[np.uint32]
    timestamps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


class HealthLog:
    """Writes the history of one task; usable from several threads.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = HealthLog(Path(folder), task=0)
    ...     log.add("run_1_0", RunInfo(0, 7, 1), [Pill("fc:0", "cpu", 1, np.zeros(14))], [])
    ...     log.close()
    ...     with HealthHistory(health_path(Path(folder), 0)) as history:
    ...         history.pills("fc:0")["step"].tolist()
    [7]
    """

    def __init__(self, root: Path, task: int) -> None:
        self._path = health_path(root, task)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._ids: dict[tuple[str, str, str], int] = {}
        # The same by key number; 0 for what has none yet.
        self._ids_by_table: weakref.WeakKeyDictionary[KeyTable, npt.NDArray[np.uint32]] = (
            weakref.WeakKeyDictionary()
        )

    def add(
        self,
        name: str,
        info: RunInfo,
        pills: Iterable[Pill | PillBlock],
        keys: Iterable[tuple[str, str, str]],
    ) -> None:
        """Add one run.

        Args:
            name: name of the run directory.
            info: its number, step and time.
            pills: the pills of the run, in their order.
            keys: tensor, debug op and device of every record of the run that is not in a block, pill or not.
        """
        with self._lock:
            db = self._open()
            try:
                with db:
                    db.execute("BEGIN IMMEDIATE")
                    cursor = db.execute(
                        "INSERT OR IGNORE INTO runs (name, run, step, timestamp) VALUES (?, ?, ?, ?)",
                        (name, info.index, info.global_step, info.timestamp),
                    )
                    if cursor.rowcount == 0:
                        return
                    run = cursor.lastrowid or 0
                    for key in keys:
                        self._id(db, key)
                    packed = b"".join(self._packed(db, run, pills))
                    db.execute("INSERT INTO recent VALUES (?, ?)", (run, _deflated(packed)))
                    if run % REGROUP_AFTER == 0:
                        self._regroup(db)
            except BaseException:
                self._forget_ids()  # numbers given inside a transaction that was rolled back
                raise

    def close(self) -> None:
        """Close the file; adding opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                self._forget_ids()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(exist_ok=True)
            db = sqlite3.connect(self._path, timeout=5.0, isolation_level=None, check_same_thread=False)
            try:
                # The history can be rebuilt from the runs: surviving the process is enough, so no fsync.
                db.execute("PRAGMA synchronous=OFF")
                if db.execute("PRAGMA user_version").fetchone()[0] > _VERSION:
                    raise DumpFormatError(f"{self._path}: written by a newer version of tensortap.")
                db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version={_VERSION};COMMIT;")
                self._ids = {
                    row[:3]: row[3] for row in db.execute("SELECT name, debug_op, device, id FROM tensors")
                }
            except BaseException:
                db.close()
                raise
            self._connection = db
        return self._connection

    def _id(self, db: sqlite3.Connection, key: tuple[str, str, str]) -> int:
        known = self._ids.get(key)
        if known is None:
            self._add_ids(db, [key])
            known = self._ids[key]
        return known

    def _add_ids(self, db: sqlite3.Connection, keys: Sequence[tuple[str, str, str]]) -> None:
        """Number what has no id yet, thousands at a time when a program is new."""
        if not keys:
            return
        last = db.execute("SELECT max(id) FROM tensors").fetchone()[0] or 0
        given = dict(zip(keys, range(last + 1, last + 1 + len(keys)), strict=True))
        stored = [key if "".join(key).isascii() else _storable(key) for key in given]
        rows = list(map(_with_id, stored, given.values()))
        added = _insert(db, "OR IGNORE INTO tensors (name, debug_op, device, id)", rows)
        if added < len(given):  # somebody else has named some of them, or two are stored as the same
            find = "SELECT id FROM tensors WHERE name=? AND debug_op=? AND device=?"
            for key, text in zip(given, stored, strict=True):
                given[key] = db.execute(find, text).fetchone()[0]
        self._ids.update(given)

    def _packed(self, db: sqlite3.Connection, run: int, pills: Iterable[Pill | PillBlock]) -> Iterator[bytes]:
        """Rows of the pills, in their order."""
        for pill in pills:
            if isinstance(pill, Pill):
                number = self._id(db, (pill.tensor, PILL_OP, pill.device))
                values = pill.values[:PILL_SIZE].tolist()
                yield _PACKED_ROW.pack(number, run, pill.timestamp, *values)
                continue
            ids = self._ids_of(db, pill.table, pill.keys)
            rows = np.empty(len(pill.pill_keys), _ROW)
            rows["tensor"] = ids[pill.pill_keys]
            rows["run"] = run
            rows["timestamp"] = pill.timestamps
            rows["pill"] = pill.values
            yield rows.tobytes()

    def _ids_of(
        self, db: sqlite3.Connection, table: KeyTable, keys: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.uint32]:
        """Ids by key number, with those of `keys` in place."""
        ids = self._ids_by_table.get(table)
        if ids is None or len(ids) < len(table):
            known = ids if ids is not None else np.zeros(0, np.uint32)
            ids = np.concatenate([known, np.zeros(len(table) - len(known), np.uint32)])
            self._ids_by_table[table] = ids
        # Not by `np.unique`, which imports a package for masked arrays first.
        new = sorted(set(keys[ids[keys] == 0].tolist()))
        if new:
            names = [
                (tensor_name(node, slot), debug_op, device)
                for node, slot, debug_op, device, _ in table.plain(new)
            ]
            self._add_ids(db, [name for name in names if name not in self._ids])
            ids[new] = list(map(self._ids.__getitem__, names))
        return ids

    def _forget_ids(self) -> None:
        self._ids.clear()
        self._ids_by_table.clear()

    @staticmethod
    def _regroup(db: sqlite3.Connection) -> None:
        blobs = [_inflated(row[0]) for row in db.execute("SELECT pills FROM recent ORDER BY run")]
        rows = np.frombuffer(b"".join(blobs), _ROW)
        rows = rows[np.argsort(rows["tensor"], kind="stable")]
        starts = np.flatnonzero(np.diff(rows["tensor"], prepend=-1)) if len(rows) else np.zeros(0, np.int64)
        ends = [*(starts[1:] * _ROW.itemsize).tolist(), rows.nbytes]
        # Slices of one buffer, few lines of Python for each tensor: training waits for the lock that they hold.
        memory = rows.view(np.uint8).data
        firsts = zip(rows["tensor"][starts].tolist(), rows["run"][starts].tolist(), strict=True)
        places = zip((starts * _ROW.itemsize).tolist(), ends, strict=True) if len(rows) else ()
        grouped = [(tensor, run, memory[a:b]) for (tensor, run), (a, b) in zip(firsts, places, strict=True)]
        _insert(db, "INTO grouped (tensor, first_run, pills)", grouped)
        db.execute("DELETE FROM recent")


def _insert(db: sqlite3.Connection, into: str, rows: Sequence[tuple[Any, ...]]) -> int:
    """Insert rows, many with each statement; how many were inserted.

    Python lets go of its lock for every statement and then waits for it: as many as there are tensors would stop
    training as often.
    """
    if not rows:
        return 0
    one = f"({', '.join('?' * len(rows[0]))})"
    at_once = _MOST_VARIABLES // len(rows[0])
    many = f"INSERT {into} VALUES {', '.join([one] * at_once)}"
    full = len(rows) // at_once * at_once
    inserted = 0
    for first in range(0, full, at_once):
        inserted += db.execute(many, tuple(chain.from_iterable(rows[first : first + at_once]))).rowcount
    if full < len(rows):
        inserted += db.executemany(f"INSERT {into} VALUES {one}", rows[full:]).rowcount
    return inserted


def _with_id(text: tuple[str, ...], number: int) -> tuple[Any, ...]:
    return (*text, number)


def _storable(key: tuple[str, str, str]) -> tuple[str, ...]:
    """SQLite keeps UTF-8 only; a name with other bytes in it is kept with replacement characters."""
    return tuple(each.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for each in key)


class HealthHistory:
    """Reads the history of one task, also while it is being written.

    Raises:
        DumpFormatError: the file is damaged or of a newer version; from any method.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        try:
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            self.close()
            raise self._damaged(error) from error
        if version > _VERSION:
            self.close()
            raise DumpFormatError(
                f"{path}: version {version} is newer than this reader, which knows {_VERSION}."
            )

    def check(self) -> None:
        """Raise if the file is no history."""
        self._rows("SELECT 1 FROM runs, tensors, recent, grouped LIMIT 1")

    def runs(self) -> dict[str, tuple[int, int]]:
        """Number and step of every run in the history, by name of its directory."""
        return {name: (run, step) for name, run, step in self._rows("SELECT name, run, step FROM runs")}

    def tensors(self) -> set[tuple[str, str, str]]:
        """Tensor, debug op and device of everything recorded."""
        return set(self._rows("SELECT name, debug_op, device FROM tensors"))

    def bad_runs(self) -> set[str]:
        """Names of the runs in which any pill counts NaN or infinities."""
        names = dict(self._rows("SELECT id, name FROM runs"))
        found: set[int] = set()
        for rows in self._all_pills():
            found.update(np.unique(rows["run"][are_bad(rows["pill"])]).tolist())
        return {names[run] for run in found if run in names}

    def unread_tensors(self) -> set[str]:
        """Names of the tensors that had pills without their elements being read, and could be bad."""
        names = dict(self._rows("SELECT id, name FROM tensors"))
        found: set[int] = set()
        for rows in self._all_pills():
            found.update(np.unique(rows["tensor"][are_unread(rows["pill"])]).tolist())
        return {names[tensor] for tensor in found if tensor in names}

    def _all_pills(self) -> Iterator[npt.NDArray[Any]]:
        """All pills, some megabytes at a time."""
        for first in range(1, self.last_group() + 1, ROWS_AT_ONCE):
            yield self.grouped_pills(first, first + ROWS_AT_ONCE - 1)
        yield self.recent_pills()

    def pills(self, tensor: str, device: str | None = None) -> npt.NDArray[Any]:
        """All pills of one tensor in the order of the runs: run, step, timestamp and `PILL_COLUMNS`."""
        query = "SELECT id FROM tensors WHERE name=? AND debug_op=?"
        ids = [row[0] for row in self._rows(query, tensor, PILL_OP)]
        if device is not None:
            ids = [row[0] for row in self._rows(f"{query} AND device=?", tensor, PILL_OP, device)]
        blobs = []
        for each in ids:
            blobs += self._rows("SELECT pills FROM grouped WHERE tensor=? ORDER BY first_run", each)
        rows = self._parse(b"".join(row[0] for row in blobs))
        recent = [self._parse(row[0]) for row in self._rows("SELECT pills FROM recent ORDER BY run")]
        rows = np.concatenate([rows, *recent])
        rows = rows[np.isin(rows["tensor"], ids)]
        rows = rows[np.argsort(rows["run"], kind="stable")]
        numbers = np.array(self._rows("SELECT id, run, step FROM runs ORDER BY id"), "<i8").reshape(-1, 3)
        place = np.searchsorted(numbers[:, 0], rows["run"])
        if len(rows) and (not len(numbers) or not np.isin(rows["run"], numbers[:, 0]).all()):
            raise DumpFormatError(f"{self._path}: the history holds pills of unknown runs.")
        history = np.zeros(len(rows), history_dtype())
        history["run"], history["step"] = numbers[place, 1], numbers[place, 2]
        history["timestamp"] = rows["timestamp"]
        for column, name in enumerate(PILL_COLUMNS):
            history[name] = rows["pill"][:, column]
        return history

    # --- many tensors at once -----------------------------------------------------------------------

    def run_rows(self, after: int = 0) -> list[tuple[int, str, int, int]]:
        """Id, name, number and step of the runs behind an id, in their order."""
        return self._rows("SELECT id, name, run, step FROM runs WHERE id > ? ORDER BY id", after)

    def tensor_ids(self) -> dict[int, str]:
        """The names of all tensors that have pills, by id, in the order in which they were first seen."""
        return dict(self._rows("SELECT id, name FROM tensors WHERE debug_op=? ORDER BY id", PILL_OP))

    def last_group(self) -> int:
        """The number of the last regrouped row; they count from 1 in the order of writing."""
        return self._rows("SELECT max(rowid) FROM grouped")[0][0] or 0

    def grouped_pills(self, first: int, last: int) -> npt.NDArray[Any]:
        """The pills of regrouped rows: ids of tensor and run, timestamp, pill."""
        blobs = self._rows("SELECT pills FROM grouped WHERE rowid BETWEEN ? AND ?", first, last)
        return self._parse(b"".join(row[0] for row in blobs))

    def recent_pills(self, after: int = 0) -> npt.NDArray[Any]:
        """The pills of runs that are not regrouped yet, in the same form."""
        blobs = self._rows("SELECT pills FROM recent WHERE run > ? ORDER BY run", after)
        return np.concatenate([np.zeros(0, _ROW), *(self._parse(row[0]) for row in blobs)])

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def __enter__(self) -> HealthHistory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, query: str, *values: Any) -> list[Any]:
        if self._db is None:
            raise ValueError(f"{self._path}: the history is closed.")
        try:
            return self._db.execute(query, values).fetchall()
        except (sqlite3.Error, OverflowError) as error:
            raise self._damaged(error) from error

    def _parse(self, blob: bytes) -> npt.NDArray[Any]:
        try:
            return np.frombuffer(_inflated(blob), _ROW)
        except (ValueError, zlib.error) as error:
            raise DumpFormatError(f"{self._path}: the pills of the history are damaged.") from error

    def _damaged(self, error: Exception) -> DumpFormatError:
        return DumpFormatError(f"{self._path}: the health history cannot be read: {error}.")


def _deflated(rows: bytes) -> bytes:
    if len(rows) < _COMPRESSED_FROM:
        return rows
    packed = zlib.compress(rows, 1)
    return packed if len(packed) % _ROW.itemsize else packed + b"\0"


def _inflated(blob: bytes) -> bytes:
    """Rows as they were."""
    if len(blob) % _ROW.itemsize == 0:
        return blob
    inflate = zlib.decompressobj()
    rows = inflate.decompress(blob, _MOST_ROWS * _ROW.itemsize)
    if not inflate.eof:
        raise ValueError("not all of it is there, or more than can be meant")
    return rows


def history_dtype() -> np.dtype[Any]:
    """Columns of a history: where it was seen, then the pill."""
    places = [("task", "<i4"), ("run", "<i8"), ("step", "<i8"), ("timestamp", "<i8")]
    return np.dtype(places + [(name, "<f8") for name in PILL_COLUMNS])
