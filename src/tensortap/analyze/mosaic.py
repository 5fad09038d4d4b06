"""The health of all tensors over all runs, small enough to be kept in memory and cut into pictures at any zoom.

A cell is one tensor in one run, in three bytes: what is bad about it, how large its largest element is, and how many
of its elements are zero. Cells that share a pixel are joined so that nothing bad gets lost: kinds of bad values are
united, of numbers the largest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.pill import (
    DTYPE,
    ELEMENTS,
    INITIALIZED,
    KIND_NAN,
    KIND_NEG_INF,
    KIND_POS_INF,
    MAX,
    MIN,
    NEGATIVE,
    POSITIVE,
    ZERO,
    kinds_of_all,
)

__all__ = ["RECORDED", "UNREAD", "Mosaic", "Tile", "cells_of_pills"]

Bytes = npt.NDArray[np.uint8]

BAD = KIND_NAN | KIND_NEG_INF | KIND_POS_INF
RECORDED = 8
"""Bit of a cell: the tensor was recorded in the run. The lower bits are the kinds of bad values in `pill.py`."""
UNREAD = 16
"""Bit of a cell: it was recorded without its elements being looked at."""

ALL_ZERO = 1
"""Size of a tensor whose elements are all zero; without any finite element it is 0."""
SMALLEST_POWER, POWERS, LEVELS_PER_POWER = -20, 40, 6
"""Sizes are the logarithm of the largest absolute value, from 10⁻²⁰ to 10²⁰ in steps of a sixth."""

CELLS = 48 << 20
"""Cells kept at most; beyond it, columns stand for two runs, then for four."""


def cells_of_pills(pills: npt.NDArray[np.float64]) -> tuple[Bytes, Bytes, Bytes]:
    """Kinds, sizes and shares of zeros of pills in rows.

    >>> pills = np.zeros((2, 14))
    >>> pills[0, [INITIALIZED, ELEMENTS, ZERO, POSITIVE, MAX]] = 1, 4, 2, 2, 10.0
    >>> [each.tolist() for each in cells_of_pills(pills)]
    [[8, 24], [128, 0], [128, 0]]
    """
    pills = np.asfortranarray(pills)  # every column is looked at several times
    kinds: Bytes = (kinds_of_all(pills) | RECORDED).astype(np.uint8)
    kinds[pills[:, INITIALIZED] == 0] |= UNREAD
    elements = pills[:, ELEMENTS]
    finite = pills[:, NEGATIVE] + pills[:, ZERO] + pills[:, POSITIVE] > 0
    with np.errstate(all="ignore"):
        largest = np.maximum(np.abs(pills[:, MIN]), np.abs(pills[:, MAX]))
        levels = np.rint((np.log10(largest) - SMALLEST_POWER) * LEVELS_PER_POWER)
        levels = ALL_ZERO + 1 + np.clip(np.nan_to_num(levels), 0, POWERS * LEVELS_PER_POWER)
        zeros = np.rint(np.clip(np.nan_to_num(pills[:, ZERO] / elements), 0, 1) * 255)
    sizes = np.where(finite, np.where(largest > 0, levels, ALL_ZERO), 0)
    return kinds, sizes.astype(np.uint8), zeros.astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Tile:
    """Part of a mosaic as a screen needs it.

    Attributes:
        edges: first column of each cell, and the column behind the last.
        kinds, sizes, zeros: uint8[rows, cells].
    """

    edges: list[int]
    kinds: Bytes
    sizes: Bytes
    zeros: Bytes


class Mosaic:
    """Tensors in rows, runs in columns, both in the order in which they were added.

    Attributes:
        tensors: names of the rows.
        dtypes: numbers of their dtypes, 0 where it is not known.
        runs, steps: number and step of the runs, in their order.
        stride: how many runs a column stands for.
        version: grows with every change.

    >>> mosaic = Mosaic()
    >>> pill = np.zeros((1, 14))
    >>> pill[0, [INITIALIZED, ELEMENTS, 2]] = 1, 1, 1
    >>> mosaic.add(np.array([mosaic.row("fc:0")]), np.array([mosaic.column(7, 70)]), pill)
    >>> mosaic.tile([[(0, 1)]], 0, 1, 100).kinds.tolist(), mosaic.first_bad()
    ([[9]], [0])
    """

    def __init__(self, cells: int = CELLS) -> None:
        self.tensors: list[str] = []
        self.runs: list[int] = []
        self.steps: list[int] = []
        self.stride = 1
        self.version = 0
        self.dtypes = np.zeros(0, np.int64)
        self._most_cells = cells
        self._rows: dict[str, int] = {}
        self._planes = [np.zeros((0, 0), np.uint8) for _ in range(3)]

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return -(-len(self.runs) // self.stride)

    def row(self, tensor: str) -> int:
        """The row of a tensor."""
        known = self._rows.get(tensor)
        if known is None:
            known = self._rows[tensor] = len(self.tensors)
            self.tensors.append(tensor)
        return known

    def column(self, run: int, step: int) -> int:
        """The place of a new run, behind all others."""
        self.runs.append(run)
        self.steps.append(step)
        return len(self.runs) - 1

    def add(
        self,
        rows: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        pills: npt.NDArray[np.float64],
    ) -> None:
        """Put pills in place; several of one cell are joined.

        Args:
            rows: as `row` gave them.
            places: of the runs, as `column` gave them.
            pills: float64[n, 14].
        """
        if not len(rows):
            return
        self._make_room()
        columns = places // self.stride
        self.dtypes[rows] = pills[:, DTYPE]
        flat = rows * self._planes[0].shape[1] + columns
        if not (flat[1:] > flat[:-1]).all():  # a history is in order
            order = np.argsort(flat, kind="stable")
            flat, pills = flat[order], pills[order]
        is_single = bool((flat[1:] > flat[:-1]).all())
        for plane, cells, join in zip(
            self._planes, cells_of_pills(pills), (np.bitwise_or, np.maximum, np.maximum), strict=True
        ):
            target = plane.reshape(-1)
            if is_single:  # much faster than `at`
                target[flat] = join(target[flat], cells)
            else:
                join.at(target, flat, cells)
        self.version += 1

    def _make_room(self) -> None:
        rows, columns = self._planes[0].shape
        while len(self.tensors) * self.columns > self._most_cells and self.columns > 1:
            self._halve()
            rows, columns = self._planes[0].shape
        if len(self.tensors) <= rows and self.columns <= columns:
            return
        # Grown by half at a time: runs come one by one while a program is watched.
        more_rows = rows if len(self.tensors) <= rows else max(len(self.tensors), rows * 5 // 4)
        more = columns if self.columns <= columns else max(self.columns, columns * 3 // 2, 16)
        for number, plane in enumerate(self._planes):
            larger = np.zeros((more_rows, more), np.uint8)
            larger[:rows, :columns] = plane
            self._planes[number] = larger
        self.dtypes = np.concatenate([self.dtypes, np.zeros(more_rows - len(self.dtypes), np.int64)])

    def _halve(self) -> None:
        """Let every column stand for twice as many runs."""
        self.stride *= 2
        for number, plane in enumerate(self._planes):
            even = plane if plane.shape[1] % 2 == 0 else np.pad(plane, ((0, 0), (0, 1)))
            join = np.maximum if number else np.bitwise_or
            self._planes[number] = join(even[:, ::2], even[:, 1::2])

    def tile(self, rows: Sequence[Sequence[tuple[int, int]]], begin: int, end: int, width: int) -> Tile:
        """Columns from `begin` up to `end`, in at most `width` cells.

        Args:
            rows: of each row of the picture, which rows of the mosaic it joins, as ranges.
            begin, end: columns.
            width: cells.
        """
        end = min(end, self.columns)
        begin = max(0, min(begin, end))
        count = max(0, min(width, end - begin))
        edges = [begin + (end - begin) * place // max(count, 1) for place in range(count + 1)]
        starts = np.array(edges[:-1], np.int64) - begin
        made = [self._joined(number, rows, begin, end, starts) for number in range(3)]
        return Tile(edges, *made)

    def _joined(
        self, number: int, rows: Sequence[Sequence[tuple[int, int]]], begin: int, end: int, starts: Any
    ) -> Bytes:
        join = np.maximum if number else np.bitwise_or
        plane = self._planes[number]
        found = np.zeros((len(rows), len(starts)), np.uint8)
        if not len(starts):
            return found
        for place, ranges in enumerate(rows):
            line = np.zeros(end - begin, np.uint8)
            for first, last in ranges:
                part = plane[max(first, 0) : max(last, 0), begin:end]
                if len(part):
                    join(line, join.reduce(part, axis=0), out=line)
            found[place] = join.reduceat(line, starts)
        return found

    def first_bad(self) -> list[int | None]:
        """The first column in which each tensor is bad."""
        kinds = self._planes[0][: len(self.tensors), : self.columns]
        found: list[int | None] = [None] * len(self.tensors)
        if not kinds.size:
            return found
        for row in np.flatnonzero(np.bitwise_or.reduce(kinds, axis=1) & BAD).tolist():
            found[row] = int(np.argmax((kinds[row] & BAD) != 0))
        return found
