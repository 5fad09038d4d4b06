"""The kernel in NumPy: the same numbers as the native one, many times slower.

Also what answers for dtypes that the native kernel does not know.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensortap.ops.dtypes import number_of
from tensortap.ops.view import TensorView
from tensortap.pill import COUNTS, DTYPE, ELEMENTS, INITIALIZED, NO_STATISTICS, PILL_SIZE, RANK, STATISTICS

__all__ = ["nan_count", "summary", "unread_summary"]

# Elements converted at once: the working copies stay within a few megabytes.
_CHUNK = 1 << 18
# Squares of values beyond this overflow; mean and variance are then taken of the values times 2**-600. The
# native kernel has the same two numbers.
_HUGE_MAGNITUDE = 2.0**500
_SCALE_EXPONENT = 600

Array = np.ndarray[Any, Any]


def summary(view: TensorView, lower: float, upper: float) -> Array:
    """The numeric summary of a tensor: 14 + rank float64."""
    row = unread_summary(view)
    array = _readable(view)
    if array is None or array.size == 0:
        return row
    array, repeat = _without_broadcasting(array)
    lower = lower if math.isfinite(lower) else -math.inf
    upper = upper if math.isfinite(upper) else math.inf
    minimum, maximum = math.inf, -math.inf
    counts = np.zeros(6)
    with np.errstate(all="ignore"):
        for values in _chunks(array):
            counts += _counts(values, lower, upper)
            finite = values[np.isfinite(values)]
            if finite.size:
                minimum = min(minimum, float(finite.min()))
                maximum = max(maximum, float(finite.max()))
        row[COUNTS] = counts * repeat
        if minimum <= maximum:
            exponent = _SCALE_EXPONENT if max(-minimum, maximum) > _HUGE_MAGNITUDE else 0
            # Adding 0.0 makes one zero of -0.0 and 0.0, which are equal.
            row[STATISTICS] = minimum + 0.0, maximum + 0.0, *_mean_and_variance(array, exponent)
    return row


def nan_count(view: TensorView) -> int:
    """The number of NaN elements; 0 for what has none or cannot be read."""
    array = _readable(view)
    if array is None or array.size == 0:
        return 0
    array, repeat = _without_broadcasting(array)
    with np.errstate(all="ignore"):
        return int(sum(np.isnan(values).sum() for values in _chunks(array)) * repeat)


def unread_summary(view: TensorView) -> Array:
    """What a summary says without reading elements: no counts but their number, no statistics."""
    row = np.zeros(PILL_SIZE + len(view.shape))
    if view.initialized:
        row[INITIALIZED] = 1.0
        row[ELEMENTS] = view.size
    row[STATISTICS] = NO_STATISTICS
    row[DTYPE] = number_of(view.dtype)
    row[RANK] = len(view.shape)
    row[PILL_SIZE:] = view.shape
    return row


def _readable(view: TensorView) -> Array | None:
    """The array, or None for what has no numbers in it: no value, strings, dates, records, unknown types."""
    if not view.initialized or view.dtype == "string":
        return None
    try:
        array = view.to_numpy()
        # Types of ml_dtypes are of kind V, as records are, but they convert.
        array[(slice(0, 0),) * array.ndim].astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    except (TypeError, ValueError):
        return None
    return None if array.dtype.kind in "Mm" or array.dtype.names is not None else array


def _without_broadcasting(array: Array) -> tuple[Array, float]:
    """One of each repeated element, and how often each occurs."""
    repeat = 1.0
    index: list[Any] = []
    for size, stride in zip(array.shape, array.strides, strict=True):
        repeated = stride == 0 and size > 1
        index.append(0 if repeated else slice(None))
        repeat *= size if repeated else 1
    return np.asarray(array[tuple(index)]), repeat


def _chunks(array: Array) -> Iterator[Array]:
    """The elements as float64, in memory order; complex numbers as their magnitudes."""
    flat = array.ravel(order="K")
    for start in range(0, flat.size, _CHUNK):
        yield _as_float64(flat[start : start + _CHUNK])


def _as_float64(values: Array) -> Array:
    if values.dtype.kind == "b":
        values = values.view(np.uint8) != 0
    if values.dtype.kind != "c":
        return values.astype(np.float64)
    re, im = values.real.astype(np.float64), values.imag.astype(np.float64)
    if values.dtype == np.complex64:
        magnitudes: Array = np.sqrt(re * re + im * im)
        return magnitudes
    return np.where(np.isnan(re) | np.isnan(im), np.nan, np.hypot(re, im))


def _counts(values: Array, lower: float, upper: float) -> Array:
    """NaN, low, negative, zero, positive, high."""
    nan = np.isnan(values)
    low = values <= lower
    high = ~low & (values >= upper)
    inside = ~(nan | low | high)
    kinds = (nan, low, inside & (values < 0), inside & (values == 0), inside & (values > 0), high)
    return np.array([np.count_nonzero(kind) for kind in kinds], dtype=np.float64)


def _mean_and_variance(array: Array, exponent: int) -> tuple[float, float]:
    """Of the finite elements, computed of their values times 2**-exponent and scaled back."""
    origin = distance = deviations = 0.0
    count = 0
    for values in _chunks(array):
        finite = np.ldexp(values[np.isfinite(values)], -exponent)
        if not finite.size:
            continue
        if count == 0:
            origin = float(finite[0] + (finite - finite[0]).mean())
        finite -= origin
        # As in the native kernel: means as distances from an origin, merged chunk by chunk.
        mean = float(finite.mean())
        step = mean - distance
        total = count + finite.size
        deviations += float(np.square(finite - mean).sum()) + step * step * (count * finite.size / total)
        distance += step * (finite.size / total)
        count = total
    mean, variance = origin + distance, deviations / count
    return float(np.ldexp(mean, exponent)), float(np.ldexp(variance, 2 * exponent))
