"""A tensor in host memory, whichever framework it belongs to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.ops.dtypes import HALF_COMPLEX, itemsize_of, numpy_dtype

__all__ = ["TensorView"]

# NumPy works out the name of a dtype anew each time it is asked, in microseconds.
_names: dict[np.dtype[Any], str] = {}
_BITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}


@dataclass(slots=True)
class TensorView:
    """Where the elements of a tensor lie. Nothing is copied; a view is made, used and dropped.

    Attributes:
        address: of the first element; 0 for a tensor without memory.
        dtype: as NumPy or ml_dtypes spell it; `complex32` and `string` besides; any other name is allowed,
            and debug ops then answer with what can be known without reading the elements.
        shape: sizes of the dimensions.
        strides: steps of the dimensions in elements, also negative or 0.
        keepalive: what owns the memory. For `string`, and types only NumPy can name, the array itself.
        has_value: False for a tensor that exists but was never given a value.

    >>> view = TensorView.of_numpy(np.arange(6, dtype=np.int32).reshape(2, 3).T)
    >>> view.dtype, view.shape, view.strides, view.nbytes
    ('int32', (3, 2), (1, 3), 24)
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    keepalive: Any = None
    has_value: bool = True

    @classmethod
    def of_numpy(cls, array: np.ndarray[Any, Any]) -> TensorView:
        """View an array. One that no strides in elements describe, or of foreign byte order, is copied."""
        dtype = array.dtype
        if dtype.kind in "SUTO":
            return cls(0, "string", array.shape, (), array)
        if not dtype.isnative:
            array = array.astype(dtype.newbyteorder("="))
        itemsize = array.itemsize
        if itemsize and any(step % itemsize for step in array.strides):
            array = array.copy()
        strides = tuple([step // itemsize for step in array.strides]) if itemsize else ()
        name = _names.get(dtype)
        if name is None:
            name = _names[dtype] = dtype.name
        return cls(array.ctypes.data, name, array.shape, strides, array)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the value when stored; 0 if the dtype has no known size."""
        return self.size * itemsize_of(self.dtype)

    @property
    def initialized(self) -> bool:
        """Whether there is a value: a tensor with elements needs memory, one without needs none.

        >>> TensorView(0, "float32", (2,), (1,)).initialized, TensorView(0, "float32", (0,), (1,)).initialized
        (False, True)
        """
        if not self.has_value:
            return False
        return self.address != 0 or self.dtype == "string" or 0 in self.shape

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """The value as an array over the same memory, not writable; the array keeps the owner alive.

        Strings are the owner's own array. Complex numbers of 16-bit parts are converted to complex64, as
        NumPy has no type for them.

        Raises:
            TypeError: the dtype is not known to NumPy or ml_dtypes, or the tensor is uninitialised.
        """
        if self.dtype in HALF_COMPLEX:
            part: Any = numpy_dtype(HALF_COMPLEX[self.dtype])
            bits = np.ascontiguousarray(self.bits())
            with np.errstate(all="ignore"):
                parts: np.ndarray[Any, Any] = bits.reshape(*self.shape, 1).view(part).astype(np.float32)
            return parts.view(np.complex64).reshape(self.shape)
        dtype = numpy_dtype(self.dtype)
        if dtype is not None:
            return self.bits().view(dtype)
        if isinstance(self.keepalive, np.ndarray):
            return self.keepalive
        raise TypeError(f"{self.dtype!r} is no dtype of NumPy or ml_dtypes")

    def bits(self) -> np.ndarray[Any, Any]:
        """The elements as unsigned integers (`V16` for 16 bytes) over the same memory.

        Raises:
            TypeError: as for `to_numpy`.
        """
        itemsize = itemsize_of(self.dtype)
        if itemsize == 0 or not self.initialized:
            raise TypeError(f"a tensor of {self.dtype!r} at address {self.address} has no bits to show")
        bits = np.dtype(_BITS.get(itemsize, f"V{itemsize}"))
        if 0 in self.shape:
            return np.empty(self.shape, bits)
        return np.asarray(_Memory(self, bits))


class _Memory:
    """Lets NumPy see the memory of a view, and keeps the view, thus its owner, as long as the array lives."""

    def __init__(self, view: TensorView, bits: np.dtype[Any]) -> None:
        self.view = view
        self.__array_interface__ = {
            "version": 3,
            "data": (view.address, True),
            "typestr": bits.str,
            "shape": tuple(view.shape),
            "strides": tuple(step * bits.itemsize for step in view.strides),
        }
