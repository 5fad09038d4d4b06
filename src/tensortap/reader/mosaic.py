"""The mosaics of a session, one for each rank, read little by little and kept up to date while it grows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.analyze.facts import facts_of_dump
from tensortap.analyze.mosaic import Mosaic
from tensortap.errors import DumpFormatError
from tensortap.pill import PILL_SIZE
from tensortap.reader.session_dir import RunRef, SessionDir
from tensortap.records import RunInfo
from tensortap.store.description import RUNNING, read_description
from tensortap.store.health import ROWS_AT_ONCE, HealthHistory
from tensortap.store.session import health_files

__all__ = ["SessionMosaic"]

_REBUILD_SECS = 5.0
"""Columns are put in order at most this often."""


class SessionMosaic:
    """Mosaics by rank.

    Runs come from the health histories; those that are not in them (their process died, they still run, or they are
    tfdbg's) from their own directories. `advance` does some of it at a time: first an even selection of everything, so
    that a picture is there at once, then the rest.

    Attributes:
        session: what is read.
        by_rank: the mosaics.
        notices: what could not be read, in sentences.
    """

    def __init__(self, session: SessionDir) -> None:
        self.session = session
        self.notices: list[str] = []
        self.by_rank: dict[int, Mosaic] = {}
        self._passed = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._passed = self.version + 1
        self._began = time.monotonic()
        self.by_rank = {}
        self._histories: dict[int, _HistoryReader] = {}
        self._places: dict[str, int] = {}
        self._read: set[str] = set()
        self._todo: list[tuple[int, int, int]] = []
        self._todo_runs: list[RunRef] = []
        self._planned = 0
        self._look_for_more()

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._passed + sum(mosaic.version for mosaic in self.by_rank.values())

    @property
    def progress(self) -> float:
        """How much of what is known to be there was read, from 0 to 1."""
        left = len(self._todo) + len(self._todo_runs)
        return 1.0 - left / max(self._planned, left, 1)

    @property
    def is_complete(self) -> bool:
        """Whether all that was known when last looked was read."""
        return not self._todo and not self._todo_runs

    def advance(self, seconds: float) -> None:
        """Go on reading, for about so long."""
        until = time.monotonic() + seconds
        while not self.is_complete and time.monotonic() < until:
            if self._todo:
                rank, first, last = self._todo.pop()
                self._add_groups(rank, first, last)
            else:
                self._add_run(self._todo_runs.pop())

    def refresh(self) -> None:
        """Look for what has been written since."""
        self.session.refresh()
        self._look_for_more()
        if self.is_complete and any(mosaic.runs != sorted(mosaic.runs) for mosaic in self.by_rank.values()):
            # Runs turned up that belong further ahead, such as those that were held back until one was bad.
            now = time.monotonic()
            if now - self._began > _REBUILD_SECS:
                self._begin_anew()

    def _look_for_more(self) -> None:
        """Give new runs their columns, in the order of their numbers, and plan how they are read."""
        new: list[tuple[int, str, int, int]] = []
        readers: list[tuple[int, _HistoryReader]] = []
        for rank, path in sorted(health_files(self.session.root).items()):
            reader = self._histories.setdefault(rank, _HistoryReader(path))
            try:
                new += [(run, name, rank, step) for name, run, step in reader.look()]
                readers.append((rank, reader))
            except DumpFormatError as error:
                self._note(str(error))
        logged = {name for reader in self._histories.values() for name in reader.names}
        unlogged = [run for run in self.session.runs if run.name not in logged and run.name not in self._read]
        for ref in unlogged:
            info = _info_of(ref)
            if info is not None:
                new.append((ref.index, ref.name, info.task, info.global_step))
        for run, name, rank, step in sorted(new):
            if name not in self._places:
                self._places[name] = self._mosaic(rank).column(run, step)
        for rank, reader in readers:
            try:
                self._plan(rank, reader)
            except DumpFormatError as error:
                self._note(str(error))
        waiting = {run.name for run in self._todo_runs}
        for ref in sorted(unlogged, key=lambda run: (run.index, run.timestamp)):
            if ref.name not in waiting:
                self._todo_runs.insert(0, ref)
        self._planned = len(self._todo) + len(self._todo_runs)

    def _plan(self, rank: int, reader: _HistoryReader) -> None:
        """Plan to read what is new in a history; what is not regrouped yet is read at once."""
        if not reader.names:
            return
        mosaic = self._mosaic(rank)
        with HealthHistory(reader.path) as history:
            reader.places |= {number: self._places[name] for number, name in reader.new.items()}
            reader.new.clear()
            reader.rows = {number: mosaic.row(name) for number, name in history.tensor_ids().items()}
            last = history.last_group()
            groups = range(reader.last_group + 1, last + 1, ROWS_AT_ONCE)
            chunks = [(rank, first, min(first + ROWS_AT_ONCE - 1, last)) for first in groups]
            self._todo += [chunks[place] for place in reversed(_coarse_first(len(chunks)))]
            reader.last_group = last
            recent = history.recent_pills(reader.last_recent)
        if len(recent):
            reader.last_recent = int(recent["run"].max())
            self._add_rows(rank, reader, recent)

    def _add_groups(self, rank: int, first: int, last: int) -> None:
        reader = self._histories[rank]
        try:
            with HealthHistory(reader.path) as history:
                self._add_rows(rank, reader, history.grouped_pills(first, last))
        except DumpFormatError as error:
            self._note(str(error))

    def _add_rows(self, rank: int, reader: _HistoryReader, rows: Any) -> None:
        places = reader.place_table()[np.minimum(rows["run"], max(reader.places, default=0))]
        lines = reader.row_table()[np.minimum(rows["tensor"], max(reader.rows, default=0))]
        known = (places >= 0) & (lines >= 0)
        if not known.all():
            rows, places, lines = rows[known], places[known], lines[known]
        self._mosaic(rank).add(lines, places, rows["pill"])

    def _add_run(self, run: RunRef) -> None:
        try:
            facts = facts_of_dump(run.open(validate=False))
            healths = list(facts)
        except (OSError, ValueError) as error:
            self._read.add(run.name)
            self._note(f"The run {run.name} cannot be read: {error}")
            return
        if not _is_running(run):
            self._read.add(run.name)
        mosaic = self._mosaic(facts.info.task)
        if run.name not in self._places:
            self._places[run.name] = mosaic.column(run.index, facts.info.global_step)
        place = self._places[run.name]
        rows = np.array([mosaic.row(tensor) for tensor, _ in healths], np.int64)
        pills = np.array([health[:PILL_SIZE] for _, health in healths], np.float64).reshape(-1, PILL_SIZE)
        mosaic.add(rows, np.full(len(rows), place, np.int64), pills)

    def _mosaic(self, rank: int) -> Mosaic:
        found = self.by_rank.get(rank)
        if found is None:
            found = self.by_rank[rank] = Mosaic()
        return found

    def _note(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)


class _HistoryReader:
    """How far a history was read, and what its ids mean.

    Attributes:
        places: columns by id of run.
        rows: rows by id of tensor.
        names: of its runs; none if there are no pills in it.
        new: names of runs that have no column yet, by id.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_run = self.last_group = self.last_recent = 0
        self.new: dict[int, str] = {}
        self.places: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self.names: set[str] = set()

    def look(self) -> list[tuple[str, int, int]]:
        """Name, number and step of the runs that have been added since."""
        with HealthHistory(self.path) as history:
            if not history.tensor_ids():
                return []
            found = history.run_rows(self.last_run)
        self.new |= {row[0]: row[1] for row in found}
        self.names |= set(self.new.values())
        self.last_run = max([self.last_run, *self.new])
        return [row[1:] for row in found]

    def place_table(self) -> Any:
        """Columns by id, -1 for what is unknown."""
        return _table(self.places)

    def row_table(self) -> Any:
        """Rows by id, -1 for what is unknown."""
        return _table(self.rows)


def _table(numbers: dict[int, int]) -> Any:
    table = np.full(max(numbers, default=0) + 1, -1, np.int64)
    table[list(numbers)] = list(numbers.values())
    return table


def _coarse_first(count: int) -> Sequence[int]:
    """All places, so ordered that the first few of them are spread evenly.

    >>> _coarse_first(6)
    [0, 4, 2, 1, 5, 3]
    """
    bits = max(count - 1, 1).bit_length()
    return [place for place in (_reversed(n, bits) for n in range(1 << bits)) if place < count]


def _reversed(number: int, bits: int) -> int:
    return int(f"{number:0{bits}b}"[::-1], 2)


def _is_running(run: RunRef) -> bool:
    try:
        return read_description(run.path).status == RUNNING
    except (OSError, ValueError):
        return False


def _info_of(run: RunRef) -> RunInfo | None:
    """Rank and step of a run of our own layout."""
    try:
        return read_description(run.path).info
    except (OSError, ValueError):
        return None
