"""The health pill: which number stands where in a numeric summary, and what is bad about a record.

Whoever makes, keeps or reads pills asks here. `pill.h` says the same to the sources in C and C++.

A pill is float64[14 + rank]: the columns below, then the size of each dimension. Its NaN and its infinities are
three *kinds* of bad values, told as a sum of bits (`KIND_NAN`, …), 0 for what is good. Bounds given to the debug op
count as infinities. What was not looked at has no kinds, and is not healthy either.

>>> row = np.array([1, 4, 1, 0, 1, 0, 1, 1, -2, 3, 0.5, 6.25, 1, 1, 4.0])
>>> kinds_of(row) == KIND_NAN | KIND_POS_INF, is_bad(row), is_healthy(row)
(True, True, False)
>>> kinds_of_all(np.stack([row, np.zeros(15)])).tolist()
[5, 0]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.dtypes import DTYPE_NUMBERS, numpy_dtype
from tensortap.records import Record

__all__ = [
    "BAD_COLUMNS",
    "BAD_NAMES",
    "BAD_WORDS",
    "COUNTS",
    "C_HEADER",
    "DTYPE",
    "ELEMENTS",
    "HASH_OP",
    "INITIALIZED",
    "KIND_NAN",
    "KIND_NEG_INF",
    "KIND_POS_INF",
    "MAX",
    "MEAN",
    "MIN",
    "NAN",
    "NAN_COUNT_OP",
    "NEGATIVE",
    "NEG_INF",
    "NEVER_BAD",
    "NO_STATISTICS",
    "PILL_BYTES",
    "PILL_COLUMNS",
    "PILL_OP",
    "PILL_SIZE",
    "POSITIVE",
    "POS_INF",
    "RANK",
    "STATISTICS",
    "VARIANCE",
    "ZERO",
    "are_bad",
    "are_healthy",
    "are_unread",
    "bad_rows",
    "is_bad",
    "is_healthy",
    "is_pill",
    "kinds_of",
    "kinds_of_all",
    "kinds_of_elements",
    "kinds_of_record",
    "kinds_of_value",
    "pill_of",
]

C_HEADER = Path(__file__).with_name("pill.h")
"""The same for C and C++."""

Flags = npt.NDArray[np.bool_]
Numbers = Sequence[Any] | npt.NDArray[Any]

PILL_OP = "DebugNumericSummary"
"""The debug op whose records are health pills."""

NAN_COUNT_OP = "DebugNanCount"
HASH_OP = "DebugHash"

PILL_COLUMNS = (
    "initialized",
    "elements",
    "nan",
    "neg_inf",
    "negative",
    "zero",
    "positive",
    "pos_inf",
    "min",
    "max",
    "mean",
    "variance",
    "dtype",
    "rank",
)
"""The fixed part of a pill, in its order; the sizes of the dimensions follow in the record itself."""

PILL_SIZE = len(PILL_COLUMNS)
PILL_BYTES = 8 * PILL_SIZE

(
    INITIALIZED,
    ELEMENTS,
    NAN,
    NEG_INF,
    NEGATIVE,
    ZERO,
    POSITIVE,
    POS_INF,
    MIN,
    MAX,
    MEAN,
    VARIANCE,
    DTYPE,
    RANK,
) = range(PILL_SIZE)
COUNTS = slice(NAN, POS_INF + 1)
"""How many elements there are of each kind, good and bad."""

STATISTICS = slice(MIN, VARIANCE + 1)
NO_STATISTICS = (math.inf, -math.inf, math.nan, math.nan)
"""Minimum, maximum, mean and variance of no element."""

KIND_NAN, KIND_NEG_INF, KIND_POS_INF = 1, 2, 4
BAD_COLUMNS = (NAN, NEG_INF, POS_INF)
"""The columns that count bad elements, in the order of their kinds."""

BAD_NAMES = tuple(PILL_COLUMNS[column] for column in BAD_COLUMNS)
BAD_WORDS = ("NaN", "−inf", "+inf")
"""How the kinds are called in sentences."""

NEVER_BAD = frozenset(
    number for name, number in DTYPE_NUMBERS.items() if name.startswith(("int", "uint", "bool", "string"))
)
"""Numbers of the dtypes that have neither NaN nor infinities: integers, booleans, strings."""

_NEVER_BAD = sorted(NEVER_BAD)
_KINDS = np.array([KIND_NAN, KIND_NEG_INF, KIND_POS_INF])
_CHUNK = 1 << 15
"""Elements looked at together: few enough that they and what is found about them stay in the cache."""

_PARTS = {"complex32": "float16", "bcomplex32": "bfloat16", "complex64": "float32", "complex128": "float64"}


# --- one pill --------------------------------------------------------------------------------------------


def kinds_of(pill: Numbers) -> int:
    """The kinds of bad values a pill tells of."""
    return (
        (KIND_NAN if pill[NAN] else 0)
        | (KIND_NEG_INF if pill[NEG_INF] else 0)
        | (KIND_POS_INF if pill[POS_INF] else 0)
    )


def is_bad(pill: Numbers) -> bool:
    """Whether a pill tells of a NaN or an infinity."""
    return bool(pill[NAN] or pill[NEG_INF] or pill[POS_INF])


def is_healthy(pill: Numbers) -> bool:
    """Whether the elements were looked at and nothing bad was found: what `mute_if_healthy` leaves out."""
    return bool(pill[INITIALIZED]) and not is_bad(pill)


# --- many pills ------------------------------------------------------------------------------------------


def kinds_of_all(pills: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The kinds of bad values that each of these rows tells of."""
    kinds: npt.NDArray[np.int64] = (pills[:, BAD_COLUMNS] != 0) @ _KINDS
    return kinds


def are_bad(pills: npt.NDArray[Any]) -> Flags:
    """Which of these rows tell of a NaN or an infinity."""
    bad: Flags = (pills[:, NAN] != 0) | (pills[:, NEG_INF] != 0) | (pills[:, POS_INF] != 0)
    return bad


def are_healthy(pills: npt.NDArray[Any]) -> Flags:
    """Which of these rows are of tensors that were looked at and are good."""
    healthy: Flags = (pills[:, INITIALIZED] != 0) & ~are_bad(pills)
    return healthy


def are_unread(pills: npt.NDArray[Any]) -> Flags:
    """Which of these rows are of tensors that nobody looked at and that could be bad."""
    unread: Flags = (pills[:, INITIALIZED] == 0) & ~np.isin(pills[:, DTYPE], _NEVER_BAD)
    return unread


def bad_rows(history: npt.NDArray[Any]) -> Flags:
    """Which rows of a history, whose fields are named as the columns, tell of a NaN or an infinity."""
    bad: Flags = np.logical_or.reduce([history[name] != 0 for name in BAD_NAMES])
    return bad


# --- records and values ----------------------------------------------------------------------------------


def is_pill(debug_op: str, value: Any) -> bool:
    """Whether the value of a record is a health pill, with all its numbers."""
    return debug_op == PILL_OP and getattr(value, "size", 0) >= PILL_SIZE


def pill_of(record: Record) -> npt.NDArray[np.float64] | None:
    """The pill that a record is, or None if it is something else."""
    if record.debug_op != PILL_OP or record.data is None or record.dtype != "float64":
        return None
    pill = np.frombuffer(record.data, np.float64)
    return pill if len(pill) >= PILL_SIZE else None


def kinds_of_record(record: Record) -> int:
    """The kinds of bad values a record tells of, whichever debug op made it.

    >>> kinds_of_record(Record("x", 0, "DebugNanCount", "", 1, "int64", (1,), np.array([2]))) == KIND_NAN
    True
    """
    dtype = numpy_dtype(record.dtype)
    if record.data is None or dtype is None or not record.initialized:
        return 0
    return kinds_of_value(record.debug_op, np.frombuffer(record.data, np.uint8).view(dtype))


def kinds_of_value(debug_op: str | None, value: npt.NDArray[Any]) -> int:
    """The kinds of bad values that the value of a record tells of: pills and counts mean others than their own."""
    if debug_op == PILL_OP:
        return kinds_of(value) if value.size >= PILL_SIZE else 0
    if debug_op == NAN_COUNT_OP:
        return KIND_NAN if value.any() else 0
    return 0 if debug_op == HASH_OP else kinds_of_elements(value)


def kinds_of_elements(array: npt.NDArray[Any]) -> int:
    """The kinds of bad values among the elements of an array of any type.

    None for strings, integers and structured values, which have no notion of it.

    >>> kinds_of_elements(np.array([1, -np.inf, np.nan])), kinds_of_elements(np.array([1, 2]))
    (3, 0)
    """
    dtype = array.dtype
    # Extension types such as bfloat16 are of NumPy's kind V, like structured ones, but have no fields.
    if dtype.kind not in "fcVW" or dtype.names is not None or dtype.subdtype is not None:
        return 0
    flat = np.ascontiguousarray(array).reshape(-1)
    part = numpy_dtype(_PARTS.get(dtype.name, ""))
    if part is not None:
        flat = flat.view(part)
    found = np.zeros(3, bool)
    try:
        for start in range(0, len(flat), _CHUNK):
            chunk = flat[start : start + _CHUNK]
            if not np.isfinite(chunk).all():
                found |= [np.isnan(chunk).any(), np.isneginf(chunk).any(), np.isposinf(chunk).any()]
    except TypeError:  # small integers and plain bytes
        return 0
    return int(found @ _KINDS)
