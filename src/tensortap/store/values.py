"""Tensor values between raw bytes and NumPy arrays, for every dtype NumPy and ml_dtypes can name."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tensortap.store.format import DumpFormatError

__all__ = [
    "InconvertibleTensorProto",
    "TensorValue",
    "as_bytes",
    "bad_kinds",
    "numpy_dtype",
    "pack_strings",
    "to_array",
]


class InconvertibleTensorProto:
    """Stands for a tensor that no array can hold: without a value yet, or of a type such as a resource.

    Attributes:
        initialized: False if the tensor had no value when it was seen.

    >>> print(InconvertibleTensorProto("float32[2]", initialized=False))
    Uninitialized tensor:
    float32[2]
    """

    def __init__(self, tensor_proto: Any, initialized: bool = True) -> None:
        self.tensor_proto = tensor_proto
        self.initialized = initialized

    def __str__(self) -> str:
        return f"{'' if self.initialized else 'Uninitialized tensor:'}\n{self.tensor_proto}".lstrip("\n")

    def __repr__(self) -> str:
        return f"<InconvertibleTensorProto initialized={self.initialized}>"


TensorValue: TypeAlias = npt.NDArray[Any] | InconvertibleTensorProto


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


_PLAIN = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


_PARTS = {"complex32": "float16", "bcomplex32": "bfloat16", "complex64": "float32", "complex128": "float64"}

_CHUNK = 1 << 15
"""Elements looked at together: few enough that they and what is found about them stay in the cache."""


def bad_kinds(array: npt.NDArray[Any]) -> tuple[bool, bool, bool]:
    """Whether an array of any type has NaN, negative and positive infinite elements.

    False for strings, integers and structured values, which have no notion of it.

    >>> bad_kinds(np.array([1, -np.inf, np.nan])), bad_kinds(np.array([1, 2]))
    ((True, True, False), (False, False, False))
    """
    dtype = array.dtype
    # Extension types such as bfloat16 are of NumPy's kind V, like structured ones, but have no fields.
    if dtype.kind not in "fcVW" or dtype.names is not None or dtype.subdtype is not None:
        return False, False, False
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
        return False, False, False
    nan, negative, positive = found.tolist()
    return nan, negative, positive


def as_bytes(data: Any) -> memoryview:
    """`data` as flat bytes without a copy, for arrays of extension types too."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    view = memoryview(data)
    if view.nbytes == 0:
        return memoryview(b"")
    if not view.c_contiguous:
        raise ValueError("The value of a record must be C-contiguous.")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def pack_strings(items: Sequence[bytes]) -> bytes:
    """Byte strings as one value: all lengths, then all contents."""
    return struct.pack(f"<{len(items)}Q", *map(len, items)) + b"".join(items)


def to_array(buffer: Any, dtype: str, shape: tuple[int, ...], offset: int, nbytes: int) -> TensorValue:
    """The array whose bytes lie at `offset` of `buffer`: a view that shares its memory.

    Strings become an object array of `bytes`. Types that have no NumPy form come back inconvertible.

    Raises:
        DumpFormatError: size, shape and dtype do not fit together.
    """
    count = element_count(shape)
    if dtype == "string":
        return _unpack_strings(bytes(memoryview(buffer)[offset : offset + nbytes]), count).reshape(shape)
    kind = numpy_dtype(dtype)
    if kind is None:
        return InconvertibleTensorProto(f"{dtype}{list(shape)}, {nbytes} bytes of a type unknown to NumPy")
    if count * kind.itemsize != nbytes:
        raise DumpFormatError(f"A value of {nbytes} bytes cannot be {dtype}{list(shape)}.")
    if count == 0:
        return np.zeros(shape, kind)
    return np.frombuffer(buffer, kind, count, offset).reshape(shape)


def element_count(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape that may come from outside."""
    if shape and min(shape) < 0:
        raise DumpFormatError(f"The shape {list(shape)} has a negative size.")
    if len(shape) > 64:
        raise DumpFormatError(f"A tensor of rank {len(shape)} is beyond the 64 dimensions NumPy can hold.")
    return math.prod(shape)


def _unpack_strings(packed: bytes, count: int) -> npt.NDArray[np.object_]:
    if count > len(packed) // 8:
        raise DumpFormatError(f"{len(packed)} bytes are too few for {count} strings.")
    array = np.empty(count, object)
    position = 8 * count
    for place, length in enumerate(struct.unpack_from(f"<{count}Q", packed)):
        array[place] = packed[position : position + length]
        position += length
    if position != len(packed):
        raise DumpFormatError(f"The lengths of {count} strings do not add up to {len(packed)} bytes.")
    return array
