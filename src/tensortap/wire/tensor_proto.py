"""Tensor values in the field's protobuf messages: `Event` and `TensorProto`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tensortap.dtypes import DTYPE_NUMBERS
from tensortap.errors import DumpFormatError
from tensortap.wire.bounded import read_bounded
from tensortap.wire.values import InconvertibleTensorProto, TensorValue, element_count, numpy_dtype

__all__ = [
    "dtype_name",
    "dtype_number",
    "fill_tensor",
    "read_event",
    "tensor_from_event",
    "tensor_from_proto",
]

_EXTRA_NUMBERS = {"float8_e4m3fnuz": 26, "float8_e4m3b11fnuz": 27, "float8_e5m2fnuz": 28}
_NUMBERS = {**_EXTRA_NUMBERS, **DTYPE_NUMBERS}
_NAMES = {number: name for name, number in _NUMBERS.items()} | {
    11: "int8",  # the quantised types are plain numbers to a debugger
    12: "uint8",
    13: "int32",
    15: "int16",
    16: "uint16",
}
_STRING = DTYPE_NUMBERS["string"]
_REFERENCE = 100
"""Added to the number of a dtype when the tensor is a reference to a variable."""


def dtype_number(name: str) -> int | None:
    """Number of a dtype in the DataType enum, None if the enum has none that values can be written in."""
    return _NUMBERS.get(name)


def dtype_name(number: int) -> str:
    """Name of a number in the DataType enum; one that no value can be written in gets a name all the same.

    >>> dtype_name(1), dtype_name(101), dtype_name(20), dtype_name(99)
    ('float32', 'float32', 'resource', 'type99')
    """
    number %= _REFERENCE
    return _NAMES.get(number) or {20: "resource", 21: "variant"}.get(number, f"type{number}")


def read_event(path: Path) -> Any:
    """The one bare Event message a tfdbg file holds (E6).

    Raises:
        DumpFormatError: the bytes are no Event.
    """
    from tensortap.wire.messages import DecodeError, Event

    try:
        return Event.FromString(read_bounded(path))
    except DecodeError as error:
        raise DumpFormatError(f"{path}: not a serialised Event: {error}.") from error


def tensor_from_event(event: Any) -> TensorValue:
    """The tensor in the first summary value of an Event."""
    if not event.summary.value:
        raise DumpFormatError("The event holds no tensor: its summary is empty.")
    return tensor_from_proto(event.summary.value[0].tensor)


def tensor_from_proto(proto: Any) -> TensorValue:
    """The value of a TensorProto; values are in `tensor_content` or `string_val`, nowhere else (E7)."""
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    count = element_count(shape)
    if count and not proto.tensor_content and not proto.string_val:
        return InconvertibleTensorProto(proto, initialized=False)
    name = _NAMES.get(proto.dtype % _REFERENCE, "")
    if name == "string":
        return _strings(proto, shape, count)
    kind = numpy_dtype(name)
    if kind is None:
        return InconvertibleTensorProto(proto)
    if count == 0:
        return np.zeros(_bounded(shape), kind)
    if len(proto.tensor_content) != count * kind.itemsize:
        raise DumpFormatError(f"A value of {len(proto.tensor_content)} bytes cannot be {name}{list(shape)}.")
    return np.frombuffer(proto.tensor_content, kind).reshape(shape)


def fill_tensor(proto: Any, value: TensorValue, dtype: str, shape: tuple[int, ...]) -> str | None:
    """Write a value into a TensorProto; the name of the substitute if the enum lacks its dtype."""
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    if isinstance(value, InconvertibleTensorProto):
        proto.dtype = _NUMBERS.get(dtype, 20 if value.initialized else 0)
        return None
    if dtype == "string":
        proto.dtype = _STRING
        proto.string_val.extend(bytes(item) for item in value.reshape(-1))
        return None
    number, substitute = _NUMBERS.get(dtype), None
    if number is None:
        substitute = "int8" if "int" in dtype else "complex64" if "complex" in dtype else "float32"
        value, number = value.astype(substitute), _NUMBERS[substitute]
    proto.dtype = number
    proto.tensor_content = value.tobytes()
    return substitute


def _strings(proto: Any, shape: tuple[int, ...], count: int) -> TensorValue:
    items = list(proto.string_val)
    if len(items) == 1 and count > 1:
        items *= min(count, 1 << 24)  # one value stands for all elements
    if len(items) != count:
        raise DumpFormatError(f"{len(items)} strings cannot have the shape {list(shape)}.")
    array = np.empty(count, object)
    array[:] = items
    return array.reshape(_bounded(shape))


def _bounded(shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(size >= 1 << 62 for size in shape):
        raise DumpFormatError(f"The shape {list(shape)} is too large.")
    return shape
