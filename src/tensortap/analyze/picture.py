"""A value as a picture: its last two dimensions at the resolution of a screen, with NaN and infinities marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.errors import UsageError
from tensortap.pill import KIND_NAN, KIND_NEG_INF, KIND_POS_INF

__all__ = ["Histogram", "Picture", "difference", "histogram_of", "picture_of"]

MOST_CELLS = 512
"""In either direction."""

BINS = 64
_SAMPLED = 4 << 20
"""Elements that a histogram counts; of larger tensors an even selection."""


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """Cells of a matrix, each the joint of as many elements as share it.

    Attributes:
        shape: of the whole value.
        shown: numbers of rows and columns that are shown.
        means: float32[rows, columns], of the finite elements of a cell; NaN without any.
        kinds: uint8[rows, columns], kinds of bad values in a cell, as bits.
        is_whole: every element has a cell of its own.
    """

    shape: tuple[int, ...]
    shown: tuple[int, int]
    means: npt.NDArray[np.float32]
    kinds: npt.NDArray[np.uint8]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Histogram:
    """How the finite elements are spread.

    Attributes:
        edges: one more than there are counts.
        is_sampled: not every element was counted.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    is_sampled: bool


def picture_of(value: npt.NDArray[Any], most: int = MOST_CELLS) -> Picture:
    """The picture of an array of at most two dimensions; of more, the first matrix.

    >>> picture = picture_of(np.array([[1.0, np.nan], [2.0, np.inf]]))
    >>> picture.kinds.tolist(), picture.shown, picture.is_whole
    ([[0, 1], [0, 4]], (2, 2), True)

    Raises:
        UsageError: it is no array of numbers.
    """
    matrix = _matrix(value)
    rows, columns = matrix.shape
    tall, wide = min(rows, most), min(columns, most)
    if not matrix.size:
        empty = np.zeros((0, 0))
        return Picture(value.shape, (rows, columns), empty.astype("f4"), empty.astype("u1"), True)
    starts = [np.arange(count) * size // count for count, size in ((tall, rows), (wide, columns))]
    means = np.empty((tall, wide), np.float32)
    kinds = np.empty((tall, wide), np.uint8)
    for place, first in enumerate(starts[0]):  # one line of cells at a time bounds the memory it takes
        last = starts[0][place + 1] if place + 1 < tall else rows
        means[place], kinds[place] = _line(_numbers(matrix[first:last]), starts[1])
    return Picture(value.shape, (rows, columns), means, kinds, (tall, wide) == (rows, columns))


@np.errstate(all="ignore")
def _line(part: npt.NDArray[np.float64], starts: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    nan, finite = np.isnan(part), np.isfinite(part)
    kinds = nan * KIND_NAN + np.isneginf(part) * KIND_NEG_INF + np.isposinf(part) * KIND_POS_INF
    sums = np.add.reduceat(np.where(finite, part, 0.0).sum(axis=0), starts)
    counts = np.add.reduceat(finite.sum(axis=0), starts)
    joined = np.bitwise_or.reduceat(np.bitwise_or.reduce(kinds.astype(np.uint8), axis=0), starts)
    return sums / np.where(counts, counts, np.nan), joined


def _matrix(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if value.dtype.kind not in "biufcV":
        raise UsageError(f"A value of type {value.dtype} cannot be shown as a picture.")
    while value.ndim > 2:
        value = value[0] if value.shape[0] else value.reshape(0, *value.shape[2:])
    return value.reshape(1, -1) if value.ndim < 2 else value


def _numbers(part: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    try:
        return np.abs(part).astype(np.float64) if part.dtype.kind == "c" else part.astype(np.float64)
    except (TypeError, ValueError):
        raise UsageError(f"A value of type {part.dtype} cannot be shown as a picture.") from None


@np.errstate(all="ignore")
def histogram_of(value: npt.NDArray[Any], bins: int = BINS) -> Histogram | None:
    """The histogram of the finite elements; None if there are none.

    >>> histogram_of(np.array([0.0, 1.0, np.nan]), 2).counts
    (1, 1)
    """
    flat = value.reshape(-1)
    step = -(-flat.size // _SAMPLED)
    numbers = _numbers(flat[:: max(step, 1)])
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return None
    low, high = float(numbers.min()), float(numbers.max())
    if not np.isfinite(high - low):  # beyond what a float64 can tell apart
        low, high = max(low, -1e300), min(high, 1e300)
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(numbers, bins, (low, high))
    return Histogram(tuple(edges.tolist()), tuple(counts.tolist()), step > 1)


@np.errstate(all="ignore")
def difference(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """One value minus another, element by element; 0 where both are the same NaN or infinity.

    >>> difference(np.array([1.0, np.nan]), np.array([3.0, np.nan])).tolist()
    [-2.0, 0.0]

    Raises:
        UsageError: their shapes differ.
    """
    if one.shape != other.shape:
        raise UsageError(
            f"The shapes {list(one.shape)} and {list(other.shape)} differ, so there is no difference to show."
        )
    left, right = _numbers(one), _numbers(other)
    alike = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.where(alike, 0.0, left - right)
