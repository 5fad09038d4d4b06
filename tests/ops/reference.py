"""An independent summary: one element after the other, in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from tensortap.dtypes import DTYPE_NUMBERS


def as_number(element):
    """A Python number: exact for integers, the magnitude for complex numbers."""
    if isinstance(element, (complex, np.complexfloating)):
        if math.isnan(element.real) or math.isnan(element.imag):
            return math.nan
        return math.hypot(element.real, element.imag)
    return float(element)


def elements_of(array):
    kind = array.dtype.kind
    if kind == "b":
        return [float(byte != 0) for byte in array.view(np.uint8).ravel()]
    with np.errstate(all="ignore"):
        if kind == "c":
            return [as_number(complex(z)) for z in array.ravel()]
        if kind in "iu":
            return [int(x) for x in array.ravel()]
        return [float(x) for x in array.astype(np.float64).ravel()]


def summary_of(array, lower=-math.inf, upper=math.inf, dtype=None):
    """What D14 and D15 say about an array."""
    elements = elements_of(array)
    counts = dict.fromkeys(("nan", "low", "negative", "zero", "positive", "high"), 0)
    for x in elements:
        if math.isnan(x):
            counts["nan"] += 1
        elif x == -math.inf or (math.isfinite(lower) and x != math.inf and x <= lower):
            counts["low"] += 1
        elif x == math.inf or (math.isfinite(upper) and x >= upper):
            counts["high"] += 1
        elif x < 0:
            counts["negative"] += 1
        elif x > 0:
            counts["positive"] += 1
        else:
            counts["zero"] += 1
    finite = [x for x in elements if math.isfinite(x)]
    statistics = (math.inf, -math.inf, math.nan, math.nan)
    if finite:
        exact = [Fraction(x) for x in finite]
        mean = sum(exact) / len(exact)
        variance = sum((x - mean) ** 2 for x in exact) / len(exact)
        statistics = (float(min(finite)), float(max(finite)), as_float(mean), as_float(variance))
    number = DTYPE_NUMBERS.get(dtype or array.dtype.name, -1)
    return np.array(
        [1.0, len(elements), *counts.values(), *statistics, number, array.ndim, *array.shape], np.float64
    )


def as_float(value):
    try:
        return float(value)
    except OverflowError:
        return math.inf


def assert_summary(found, expected, *, rtol=1e-12):
    """Counts, dtype and shape are equal, extremes too; mean and variance agree to rounding.

    The magnitude of a complex number is rounded, and a square root of squares may differ from it in the last bit.
    """
    __tracebackhide__ = True
    found, expected = np.array(found), np.array(expected)
    assert found.dtype == np.float64
    assert found.shape == expected.shape
    exact = [*range(8), *range(12, len(expected))]
    np.testing.assert_array_equal(found[exact], expected[exact])
    maybe_complex = expected[12] in (DTYPE_NUMBERS["complex64"], DTYPE_NUMBERS["complex128"], -1)
    np.testing.assert_allclose(found[8:10], expected[8:10], rtol=1e-15 if maybe_complex else 0)
    if not math.isfinite(expected[8]):
        assert np.isnan(found[10:12]).all()
        return
    magnitude = max(abs(expected[8]), abs(expected[9]))
    np.testing.assert_allclose(found[10], expected[10], rtol=rtol, atol=rtol * magnitude)
    # Variances below the range of float64 squares are lost, as in any sum of squares.
    np.testing.assert_allclose(found[11], expected[11], rtol=rtol, atol=1e-300)
