"""The dtypes a summary can be made of, by the names NumPy, ml_dtypes and the frameworks share.

A name has a code, by which the native kernel knows it, and the number of the field's DataType enum, which is
slot 12 of a numeric summary (-1 where the enum has none).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import ml_dtypes
import numpy as np

from tensortap.dtypes import DTYPE_NUMBERS

__all__ = [
    "CODES",
    "HALF_COMPLEX",
    "TABLE_DTYPES",
    "in_precision_of",
    "itemsize_of",
    "number_of",
    "numpy_dtype",
    "value_table",
]

# In the order of `enum Dtype` in native/summary.h.
_BUILT_IN = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "bcomplex32",
    "complex64",
    "complex128",
)

# One byte per element; what each byte stands for is asked of ml_dtypes. Older releases lack some.
TABLE_DTYPES = tuple(
    name
    for name in (
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float4_e2m1fn",
        "int1",
        "int2",
        "int4",
        "uint1",
        "uint2",
        "uint4",
    )
    if hasattr(ml_dtypes, name)
)

CODES = {name: code for code, name in enumerate((*_BUILT_IN, *TABLE_DTYPES))}

# Complex numbers of two 16-bit parts, which NumPy cannot hold (ml_dtypes has one of them from 0.6).
HALF_COMPLEX = {"complex32": "float16", "bcomplex32": "bfloat16"}


def number_of(dtype: str) -> int:
    """Number of a dtype in the DataType enum, or -1.

    >>> number_of("float32"), number_of("float8_e4m3fnuz")
    (1, -1)
    """
    return DTYPE_NUMBERS.get(dtype, -1)


_numpy_dtypes: dict[str, np.dtype[Any] | None] = {}


def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """The NumPy type of that name, or None if there is none.

    >>> numpy_dtype("bfloat16")
    dtype(bfloat16)
    """
    if name not in _numpy_dtypes:
        _numpy_dtypes[name] = _find_numpy_dtype(name)
    return _numpy_dtypes[name]


def itemsize_of(name: str) -> int:
    """Bytes of an element, or 0 for a dtype that is not known.

    >>> itemsize_of("complex32"), itemsize_of("float32"), itemsize_of("string")
    (4, 4, 0)
    """
    if name in HALF_COMPLEX:
        return 4
    dtype = numpy_dtype(name)
    return 0 if dtype is None else dtype.itemsize


@functools.lru_cache(maxsize=256)
def in_precision_of(dtype: str, bound: float) -> float:
    """A bound as an element of that dtype would hold it; unchanged for types that are no floats.

    >>> in_precision_of("bfloat16", 0.1), in_precision_of("float16", 1e6), in_precision_of("int8", 0.1)
    (0.10009765625, 1000000.0, 0.1)
    """
    kind = numpy_dtype(dtype)
    if not math.isfinite(bound) or kind is None or not dtype.startswith(("float", "bfloat")):
        return bound
    with np.errstate(all="ignore"):
        rounded = float(np.float64(bound).astype(kind))
    return rounded if math.isfinite(rounded) else bound


def value_table(name: str) -> bytes:
    """The 256 float32 that the bytes of a one-byte type stand for."""
    dtype = numpy_dtype(name)
    assert dtype is not None
    with np.errstate(all="ignore"):
        return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32).tobytes()


def _find_numpy_dtype(name: str) -> np.dtype[Any] | None:
    if name in HALF_COMPLEX or name == "string":
        return None
    extension = getattr(ml_dtypes, name, None)
    try:
        found: np.dtype[Any] = np.dtype(name if extension is None else extension)
    except TypeError:
        return None
    return None if found.hasobject or found.itemsize == 0 else found
