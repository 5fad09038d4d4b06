"""The debug ops: each reduces one live tensor to the value of one record.

They answer for every dtype. What cannot be counted (strings, dates, types no library knows) gets the answer
that is true without reading it, because a debugger must not fail the run it watches.

>>> op = make_debug_op("DebugNumericSummary", {"lower_bound": "-2", "upper_bound": "2"})
>>> values = np.array([-5, -2, 0, 1, 5, np.nan], np.float32)
>>> op.apply(TensorView.of_numpy(values)).round(2).tolist()
[1.0, 6.0, 1.0, 2.0, 0.0, 1.0, 1.0, 1.0, -5.0, 5.0, -0.2, 10.96, 1.0, 1.0, 6.0]
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from tensortap.errors import InvalidArgumentError
from tensortap.ops import kernel
from tensortap.ops.dtypes import in_precision_of
from tensortap.ops.view import TensorView
from tensortap.pill import HASH_OP, NAN_COUNT_OP, PILL_OP, is_healthy
from tensortap.suggest import nearest

__all__ = [
    "DEBUG_OPS",
    "DebugHash",
    "DebugIdentity",
    "DebugNanCount",
    "DebugNumericSummary",
    "DebugOp",
    "make_debug_op",
]

_log = logging.getLogger("tensortap.ops")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class DebugOp(ABC):
    """What is done with a watched tensor.

    Attributes:
        gated_grpc: publish to a grpc:// address only while the server asks for it.
    """

    name: ClassVar[str]

    gated_grpc: bool = False

    @abstractmethod
    def apply(self, view: TensorView) -> Array | None:
        """The value to publish, in memory of its own; None if there is none to publish."""


@dataclass(frozen=True, kw_only=True)
class DebugIdentity(DebugOp):
    """The value itself, copied.

    An uninitialised tensor has no value: `apply` gives None, and the record says that it is not initialised.
    So has a tensor of a dtype that neither NumPy nor ml_dtypes can hold; that is logged once per dtype.

    >>> DebugIdentity().apply(TensorView.of_numpy(np.arange(3)[::-1])).tolist()
    [2, 1, 0]
    """

    name = "DebugIdentity"

    def apply(self, view: TensorView) -> Array | None:
        """A copy of the value, contiguous, in the order of its indices."""
        if not view.initialized:
            return None
        try:
            return np.array(view.to_numpy(), order="C", copy=True)
        except TypeError as error:
            _warn_once(view.dtype, str(error))
            return None


@dataclass(frozen=True, kw_only=True)
class DebugIndices(DebugIdentity):
    """Where the stored values of a sparse tensor belong, int64[dimensions, values]; recorded beside `DebugIdentity`
    by engines, never asked for.
    """

    name = "DebugIndices"


@dataclass(frozen=True, kw_only=True)
class DebugNanCount(DebugOp):
    """The number of NaNs, int64[1]; 0 for an uninitialised tensor and for dtypes without NaN.

    >>> DebugNanCount().apply(TensorView.of_numpy(np.array([np.nan, 1.0])))
    array([1])
    """

    name = NAN_COUNT_OP

    def apply(self, view: TensorView) -> Array | None:
        """The count."""
        return np.array([kernel.nan_count(view)], np.int64)


@dataclass(frozen=True, kw_only=True)
class DebugNumericSummary(DebugOp):
    """Counts and statistics, float64[14 + rank]:

    | index | meaning |
    |---|---|
    | 0 | 1 if initialised, else 0 |
    | 1 | number of elements |
    | 2 | NaN |
    | 3 | -inf, and finite elements up to a finite lower bound |
    | 4 | other negative elements |
    | 5 | other zeros, 0.0 and -0.0 |
    | 6 | other positive elements |
    | 7 | +inf, and other finite elements from a finite upper bound on |
    | 8, 9 | minimum and maximum of the finite elements; +inf and -inf if there are none |
    | 10, 11 | mean and population variance of the finite elements; NaN if there are none |
    | 12 | number of the dtype in the field's DataType enum, -1 if it has none |
    | 13, 14... | rank, and the size of each dimension |

    Complex numbers are summarised by their magnitudes: NaN if a part is NaN, else infinite if a part is, or
    if the magnitude exceeds float64. Elements that are not numbers (strings, dates) are only counted, in
    index 1. Of an uninitialised tensor indices 0 to 7 are 0.

    Attributes:
        lower_bound: compared in the precision of the tensor: a float16 0.1 is not above a bound of 0.1.
        upper_bound: likewise.
        mute_if_healthy: publish only if there is anything in 2, 3 or 7, or if there was no value to look at.
    """

    name = PILL_OP

    lower_bound: float = -math.inf
    upper_bound: float = math.inf
    mute_if_healthy: bool = False

    def apply(self, view: TensorView) -> Array | None:
        """The summary, or None if it is muted."""
        lower, upper = self.lower_bound, self.upper_bound
        if math.isfinite(lower) or math.isfinite(upper):
            lower, upper = in_precision_of(view.dtype, lower), in_precision_of(view.dtype, upper)
        row = kernel.summary(view, lower, upper)
        if self.mute_if_healthy and is_healthy(row):
            return None
        return row


@dataclass(frozen=True, kw_only=True)
class DebugHash(DebugOp):
    """A hash of the content, uint8[16]: BLAKE2b of dtype, shape and the bits of the elements in index order.

    The same for the same bits on any engine, machine and memory layout. Bits, not values: 0.0 and -0.0
    differ, so do NaNs of different payload. Strings are hashed one by one with their lengths, text as UTF-8.
    All zeros for an uninitialised tensor and for a dtype whose bits are unknown.

    >>> values = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> one, other = (DebugHash().apply(TensorView.of_numpy(a)) for a in (values, values.T.copy().T))
    >>> bytes(one) == bytes(other)
    True
    """

    name = HASH_OP

    def apply(self, view: TensorView) -> Array | None:
        """The hash."""
        digest = hashlib.blake2b(f"{view.dtype}{list(view.shape)}\n".encode(), digest_size=16)
        if not view.initialized:
            return np.zeros(16, np.uint8)
        if view.dtype == "string":
            for element in view.to_numpy().flat:
                data = _as_bytes(element)
                digest.update(len(data).to_bytes(8, "little") + data)
        else:
            try:
                digest.update(np.ascontiguousarray(view.bits()).reshape(-1).view(np.uint8).data)
            except TypeError as error:
                _warn_once(view.dtype, str(error))
                return np.zeros(16, np.uint8)
        return np.frombuffer(bytearray(digest.digest()), np.uint8)


DEBUG_OPS: dict[str, type[DebugOp]] = {
    op.name: op for op in (DebugIdentity, DebugNanCount, DebugNumericSummary, DebugHash)
}


def make_debug_op(name: str, attributes: Mapping[str, str] | None = None) -> DebugOp:
    """The debug op of that name, with attributes as they are written in a watch.

    Args:
        name: such as `DebugIdentity`.
        attributes: texts by attribute; numbers as Python reads them, booleans as true/t/1/false/f/0.

    Raises:
        InvalidArgumentError: no such op, no such attribute, or a text its attribute cannot take.

    >>> make_debug_op("DebugNanCount", {"gated_grpc": "T"})
    DebugNanCount(gated_grpc=True)
    """
    kind = DEBUG_OPS.get(name)
    if kind is None:
        raise InvalidArgumentError(
            None,
            f"There is no debug op {name!r}.{nearest(name, DEBUG_OPS)} There are {', '.join(DEBUG_OPS)}.",
        )
    parsers = {field.name: _PARSERS[str(field.type)] for field in fields(kind)}
    texts = dict(attributes or {})
    unknown = [key for key in texts if key not in parsers]
    if unknown:
        raise InvalidArgumentError(
            None,
            f"{len(unknown)} attribute key(s) were not valid: {', '.join(unknown)}. "
            f"{name} has {', '.join(sorted(parsers))}.",
        )
    values = {}
    for key, text in texts.items():
        try:
            values[key] = parsers[key](text)
        except ValueError as error:
            raise InvalidArgumentError(
                None, f"{text!r} is no value for the attribute {key} of {name}: {error}"
            ) from None
    return kind(**values)


def _parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word in ("true", "t", "1"):
        return True
    if word in ("false", "f", "0"):
        return False
    raise ValueError("expected true, t, 1, false, f or 0")


def _parse_float(text: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError("expected a number, inf or -inf")
    return value


_PARSERS: dict[str, Callable[[str], Any]] = {"bool": _parse_bool, "float": _parse_float}


def _as_bytes(element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    return (element if isinstance(element, str) else repr(element)).encode("utf-8", "surrogateescape")


@functools.cache
def _warn_once(dtype: str, reason: str) -> None:
    _log.warning("The values of tensors of dtype %s are not recorded: %s.", dtype, reason)
