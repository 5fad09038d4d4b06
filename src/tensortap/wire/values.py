"""Tensor values between raw bytes and NumPy arrays, for every dtype NumPy and ml_dtypes can name."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tensortap.dtypes import numpy_dtype
from tensortap.errors import DumpFormatError

__all__ = [
    "InconvertibleTensorProto",
    "TensorValue",
    "as_bytes",
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

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """TensorFlow's class of this name, where its debugger is in use: its tools ask whether a value is one."""
        debugger = sys.modules.get("tensorflow.python.debug.lib.debug_data")
        return getattr(debugger, "InconvertibleTensorProto", InconvertibleTensorProto)

    def __str__(self) -> str:
        return f"{'' if self.initialized else 'Uninitialized tensor:'}\n{self.tensor_proto}".lstrip("\n")

    def __repr__(self) -> str:
        return f"<InconvertibleTensorProto initialized={self.initialized}>"


TensorValue: TypeAlias = npt.NDArray[Any] | InconvertibleTensorProto


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
