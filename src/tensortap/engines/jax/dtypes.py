"""The dtypes that taps can read."""

from __future__ import annotations

__all__ = ["READABLE", "XLA_DTYPES"]

XLA_DTYPES = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "complex64": 15,
    "bfloat16": 16,
    "complex128": 18,
    "float8_e5m2": 19,
    "float8_e4m3fn": 20,
    "float8_e4m3b11fnuz": 23,
    "float8_e5m2fnuz": 24,
    "float8_e4m3fnuz": 25,
    "float8_e4m3": 28,
    "float8_e3m4": 29,
    "float8_e8m0fnu": 33,
}
"""Their numbers in XLA, by name; four-bit types are packed there and left alone."""

READABLE = frozenset(XLA_DTYPES)
"""Names of the dtypes that taps can read."""
