"""The events that carry tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tensortap.records import Record
from tensortap.wire.debug_service import MAX_CHUNK_BYTES, TensorProto, WireError
from tensortap.wire.encoding import delimited, double, header, varint
from tensortap.wire.events.fields import bounded, json_object, microseconds, text, whole
from tensortap.wire.events.joining import Joiner
from tensortap.wire.tensor_proto import dtype_name, dtype_number, fill_tensor
from tensortap.wire.values import as_bytes, numpy_dtype

__all__ = ["TensorJoiner", "tensor_events"]

_DEBUGGER = "debugger"


def tensor_events(record: Record, max_bytes: int = MAX_CHUNK_BYTES) -> Iterator[bytes]:
    """The events that carry one record (F9).

    Raises:
        ValueError: a single string is longer than a chunk may be.

    >>> from tensortap.wire.debug_service import Event
    >>> record = Record("x", 0, "DebugIdentity", "/device:CPU:0", 17, "float32", (3,), bytes(12))
    >>> joiner, events = TensorJoiner(), list(tensor_events(record, max_bytes=8))
    >>> [joiner.add(Event.FromString(event)) for event in events][-1] == record
    True
    """
    number = dtype_number(record.dtype)
    if record.data is None or record.dtype == "string" or number is None:
        tensors = _unusual_tensors(record, max_bytes)
    else:
        tensors = _plain_tensors(record, number, max_bytes)
    time = double(1, float(record.timestamp))
    for index, parts in enumerate(tensors):
        head = _value_head(
            record.node_name, record.output_slot, record.debug_op, record.device, len(tensors), index
        )
        length = sum(map(len, parts))
        start = head + header(8, length)
        value_length = len(start) + length
        inner = header(1, value_length)
        yield b"".join((time, header(5, len(inner) + value_length), inner, start, *parts))


@lru_cache(maxsize=1 << 16)
def _value_head(node: str, slot: int, debug_op: str, device: str, count: int, index: int) -> bytes:
    """All fields of a Summary.Value before its tensor."""
    content = {"device": device, "outputSlot": slot, "numChunks": count, "chunkIndex": index}
    plugin = delimited(1, _DEBUGGER.encode()) + delimited(2, json.dumps(content).encode())
    return (
        delimited(1, node.encode())
        + delimited(7, f"{node}:{slot}:{debug_op}".encode())
        + delimited(9, delimited(1, plugin))
    )


@lru_cache(maxsize=1 << 12)
def _tensor_head(number: int, shape: tuple[int, ...]) -> bytes:
    """The dtype and shape of a TensorProto."""
    dims = b"".join(delimited(2, b"\x08" + varint(size)) for size in shape)
    return b"\x08" + varint(number) + delimited(2, dims)


def _plain_tensors(record: Record, number: int, max_bytes: int) -> list[tuple[bytes | memoryview, ...]]:
    head, content = _tensor_head(number, record.shape), as_bytes(record.data)
    chunks = [content[start : start + max_bytes] for start in range(0, max(1, len(content)), max_bytes)]
    return [(head + header(4, len(chunk)), chunk) for chunk in chunks]


def _unusual_tensors(record: Record, max_bytes: int) -> list[tuple[bytes | memoryview, ...]]:
    """Strings, which are split between elements; what has no value; what the field has no number for."""
    if record.data is None:
        proto = TensorProto(dtype=dtype_number(record.dtype) or 0)
        for size in record.shape:
            proto.tensor_shape.dim.add(size=size)
        return [(proto.SerializeToString(),)]
    if record.dtype != "string":
        kind = numpy_dtype(record.dtype)
        if kind is None:
            raise ValueError(f"{record.dtype} has no form in the protocol")
        proto = TensorProto()
        fill_tensor(proto, np.frombuffer(as_bytes(record.data), kind), record.dtype, ())
        return _plain_tensors(
            Record(*_named(record), dtype_name(proto.dtype), record.shape, proto.tensor_content),
            proto.dtype,
            max_bytes,
        )
    head = _tensor_head(dtype_number("string") or 0, record.shape)
    tensors: list[tuple[bytes | memoryview, ...]] = []
    start = used = 0
    items: Sequence[bytes] = record.data
    for place, item in enumerate(items):
        if len(item) > max_bytes:
            raise ValueError(f"a string of {len(item)} bytes is more than a message holds ({max_bytes})")
        if used + len(item) + 8 > max_bytes and place > start:
            tensors.append((head, *(delimited(8, each) for each in items[start:place])))
            start, used = place, 0
        used += len(item) + 8
    tensors.append((head, *(delimited(8, each) for each in items[start:])))
    return tensors


def _named(record: Record) -> tuple[str, int, str, str, int]:
    return record.node_name, record.output_slot, record.debug_op, record.device, record.timestamp


class TensorJoiner(Joiner):
    """Puts the chunks of tensors together, and makes records of them."""

    def add(self, event: Any, content: memoryview | None = None) -> Record | None:
        """Take a tensor event; the record if this was its last or only chunk.

        Args:
            event: the event.
            content: the content of its tensor, from whoever knows where it is; asking the event for it makes a copy.

        Raises:
            WireError: a field is missing or has the wrong form, size and shape disagree, or too much waits.
        """
        if len(event.summary.value) != 1:
            raise WireError("An event holds more than one tensor.")
        value = event.summary.value[0]
        facts = json_object(value.metadata.plugin_data.content)
        device = text(facts, "device")
        count, index = whole(facts, "numChunks", 1), whole(facts, "chunkIndex", 0)
        node, slot, debug_op = _split_watch_key(value.node_name)
        timestamp = microseconds(event.wall_time)
        name = dtype_name(value.tensor.dtype)
        shape = tuple(dim.size for dim in value.tensor.tensor_shape.dim)
        if len(shape) > 64 or any(size < 0 for size in shape):
            raise WireError(f"{value.node_name}: {list(shape)[:64]} is no shape.")
        data: Any = content
        if name == "string":
            data = list(value.tensor.string_val)
        elif data is None:
            data = value.tensor.tensor_content
        if count > 1:
            nbytes = sum(map(len, data)) if name == "string" else len(data)
            key = (device, value.node_name, timestamp)
            parts = self.join(key, index, count, data, nbytes)
            if parts is None:
                return None
            data = [each for part in parts for each in part] if name == "string" else b"".join(parts)
        data, initialized = _checked(value.node_name, name, shape, data)
        return Record(node, slot, debug_op, device, timestamp, name, shape, data, initialized)


def _checked(key: str, dtype: str, shape: tuple[int, ...], content: Any) -> tuple[Any, bool]:
    """The data of a record and whether the tensor had a value (E7)."""
    elements = math.prod(shape)
    if elements and not content:
        return None, False
    if dtype == "string":
        if len(content) == 1 and 1 < elements <= 1 << 20 and len(content[0]) * elements <= 1 << 28:
            content = content * elements  # one value stands for all elements
        if len(content) != elements:
            raise WireError(f"{key}: {len(content)} strings cannot have the shape {list(shape)}.")
        return content, True
    kind = numpy_dtype(dtype)
    if kind is None:
        return None, True
    if len(content) != elements * kind.itemsize:
        raise WireError(f"{key}: {len(content)} bytes cannot be {dtype}{list(shape)}.")
    return content, True


def _split_watch_key(key: str) -> tuple[str, int, str]:
    tensor, _, debug_op = bounded(key).rpartition(":")
    node, _, slot = tensor.rpartition(":")
    if not node or not debug_op or not slot.isdecimal() or len(slot) > 9:
        raise WireError(f"{key[:200]!r} is no watch key: those are written node:slot:DebugOp.")
    return node, int(slot), debug_op
