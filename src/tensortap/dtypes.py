"""Names of dtypes and what NumPy makes of them: the lowest layer, which knows no framework."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

__all__ = ["DTYPE_NAMES", "DTYPE_NUMBERS", "numpy_dtype"]

DTYPE_NUMBERS = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "string": 7,
    "complex64": 8,
    "int64": 9,
    "bool": 10,
    "bfloat16": 14,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
    "float8_e5m2": 24,
    "float8_e4m3fn": 25,
}
"""Dtypes by name, with their numbers in the field's DataType enum: those of graphs and health pills."""

DTYPE_NAMES = {number: name for name, number in DTYPE_NUMBERS.items()}

_PLAIN = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """The dtype called `name`, or None if NumPy and ml_dtypes have none.

    >>> numpy_dtype("float32"), numpy_dtype("bfloat16"), numpy_dtype("quaternion")
    (dtype('float32'), dtype(bfloat16), None)
    """
    import ml_dtypes

    extension = getattr(ml_dtypes, name, None)
    if isinstance(extension, type) and issubclass(extension, np.generic):
        return np.dtype(extension)
    # Only plain words: "O", "f4,f4" and the like would give NumPy types that raw bytes must not become.
    if name not in _PLAIN:
        return None
    return np.dtype(name)
