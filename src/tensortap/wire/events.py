"""What a stream is made of: `Event` messages that carry metadata, graphs and tensors.

    metadata_event(info, …)         bytes of the event that says which run a stream is about
    graph_events(graph, …)          bytes of the events that carry a GraphDef, in chunks
    tensor_events(record)           bytes of the events that carry a record, in chunks
    run_end_event(…)                bytes of our own event that says how a run ended
    kind_of(event)                  which of these an Event is
    read_metadata, read_run_end     what such an event says
    GraphJoiner, TensorJoiner       put chunks together again; `add(event)` gives the whole once it is there

Everything that reads trusts nothing: what is not as it should be raises `WireError`, and what waits for its
missing chunks is bounded.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tensortap.records import Circumstances, Record, RunInfo
from tensortap.wire.debug_service import MAX_CHUNK_BYTES, Event, TensorProto, WireError
from tensortap.wire.encoding import delimited, double, header, varint
from tensortap.wire.tensor_proto import dtype_name, dtype_number, fill_tensor
from tensortap.wire.values import as_bytes, numpy_dtype

__all__ = [
    "BATCH",
    "GRAPH",
    "METADATA",
    "OTHER",
    "RUN_END",
    "TENSOR",
    "GraphJoiner",
    "ReceivedGraph",
    "RunEnding",
    "StreamMetadata",
    "TensorJoiner",
    "graph_events",
    "kind_of",
    "metadata_event",
    "own_event",
    "read_metadata",
    "read_run_end",
    "run_end_event",
    "tensor_events",
]

METADATA, GRAPH, TENSOR, BATCH, RUN_END, OTHER = "metadata", "graph", "tensor", "batch", "run end", "other"

_DEBUGGER = "debugger"
BATCH_PLUGIN = "tensortap.batch"
_RUN_END = "tensortap.run_end"
MAX_NAME_BYTES = 4096
MAX_JSON_BYTES = 1 << 20
_EXTRA = "tensortap"
_TEXT_LIMIT = 1 << 16


def kind_of(event: Any) -> str:
    """Which kind of event this is: `METADATA`, `GRAPH`, `TENSOR`, `BATCH`, `RUN_END` or `OTHER`."""
    if event.HasField("summary") and event.summary.value:
        plugin = event.summary.value[0].metadata.plugin_data.plugin_name
        return {BATCH_PLUGIN: BATCH, _RUN_END: RUN_END}.get(plugin, TENSOR)
    if event.graph_def:
        return GRAPH
    return METADATA if event.log_message.message else OTHER


# --- metadata ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamMetadata:
    """What the first event of a stream says about it.

    Attributes:
        info: the run. A client that is not ours leaves timestamp, task and printed fetches at their defaults.
        grpc_path: path of the URL that the client was given, with its leading slash, or empty.
        session: what the runs of one program have in common, and the ranks of one launch; empty if unknown.
        host: name of the client's machine, empty if unknown.
        process: process id of the client, 0 if unknown.
    """

    info: RunInfo
    grpc_path: str = ""
    session: str = ""
    host: str = ""
    process: int = 0


def metadata_event(metadata: StreamMetadata) -> bytes:
    """The event that says which run a stream is about: tfdbg's fields, and ours under a key of their own.

    >>> read_metadata(Event.FromString(metadata_event(StreamMetadata(RunInfo(3, 12, 17))))).info.global_step
    12
    """
    info = metadata.info
    facts = {
        "global_step": info.global_step,
        "session_run_index": info.index,
        "executor_step_index": info.index,
        "input_names": info.input_names,
        "output_names": info.output_names,
        "target_nodes": info.target_nodes,
        "grpc_path": metadata.grpc_path,
        _EXTRA: {
            "timestamp": info.timestamp,
            "task": info.task,
            "fetches": _shortened(info.fetches),
            "feed_keys": _shortened(info.feed_keys),
            "session": metadata.session,
            "host": metadata.host,
            "process": metadata.process,
        },
    }
    event = Event(wall_time=float(info.timestamp))
    event.log_message.message = json.dumps(facts)
    return bytes(event.SerializeToString())


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + "…"


def read_metadata(event: Any) -> StreamMetadata:
    """What a metadata event says.

    Raises:
        WireError: it is no JSON, or a field has the wrong form.
    """
    facts = _json(event.log_message.message)
    ours = facts.get(_EXTRA, {})
    if not isinstance(ours, dict):
        raise WireError(f"The metadata of a run has a field {_EXTRA!r} that is no object.")
    info = RunInfo(
        index=_whole(facts, "session_run_index", -1),
        global_step=_whole(facts, "global_step", -1),
        timestamp=_whole(ours, "timestamp", _microseconds(event.wall_time)),
        task=_whole(ours, "task", 0),
        fetches=_text(ours, "fetches", "None", MAX_JSON_BYTES),
        feed_keys=_text(ours, "feed_keys", "None", MAX_JSON_BYTES),
        input_names=_texts(facts, "input_names"),
        output_names=_texts(facts, "output_names"),
        target_nodes=_texts(facts, "target_nodes"),
    )
    return StreamMetadata(
        info,
        _text(facts, "grpc_path"),
        _text(ours, "session"),
        _text(ours, "host"),
        _whole(ours, "process", 0),
    )


# --- the end of a run ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended, as our clients tell servers that accept it.

    Attributes:
        error: what made it fail, None if it completed.
        counts: what the client counted so far, such as records dropped because the server was slow.
        graphs: SHA-256 of the serialised GraphDef of each device, as this or an earlier stream sent it.
        circumstances: what the engine knows of the run besides, see `Circumstances.as_dict`.
    """

    error: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    graphs: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, Any] = field(default_factory=dict)


def run_end_event(ending: RunEnding) -> bytes:
    """The event that says how a run ended; the last of its stream."""
    content = json.dumps(asdict(ending)).encode()
    if len(content) > MAX_JSON_BYTES:  # thousands of bad tensors: the answer can do without
        content = json.dumps(asdict(replace(ending, circumstances={}))).encode()
    return b"".join(own_event(_RUN_END, content))


def read_run_end(event: Any) -> RunEnding:
    """How a run ended.

    Raises:
        WireError: it is no JSON, or a field has the wrong form.
    """
    facts = _json(event.summary.value[0].metadata.plugin_data.content)
    counts = facts.get("counts", {})
    if not isinstance(counts, dict) or len(counts) > 1000:
        raise WireError("The counts at the end of a run are no object.")
    graphs = facts.get("graphs", {})
    if not isinstance(graphs, dict) or len(graphs) > 1000:
        raise WireError("The graphs at the end of a run are no object.")
    error = None if facts.get("error") is None else _text(facts, "error", "", MAX_JSON_BYTES)
    return RunEnding(
        error,
        {_bounded(name): _whole(counts, name, 0) for name in counts},
        {_bounded(device): _text(graphs, device) for device in graphs},
        _circumstances(facts.get("circumstances", {})),
    )


def _circumstances(told: Any) -> dict[str, Any]:
    try:
        return Circumstances.from_dict(told).as_dict()
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise WireError(f"The circumstances at the end of a run cannot be read: {error!r}") from error


def own_event(plugin: str, *content: bytes | memoryview) -> list[bytes | memoryview]:
    """The parts of an Event that carries content of our own, in the place where plugins keep theirs."""
    length = sum(map(len, content))
    name = delimited(1, plugin.encode())
    inner = name + header(2, length)
    # Event.summary > value > metadata > plugin_data, each with the length of all that is in it.
    outer = b""
    size = len(inner) + length
    for number in (1, 9, 1, 5):
        start = header(number, size)
        outer = start + outer
        size += len(start)
    return [outer + inner, *content]


# --- graphs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReceivedGraph:
    """A graph that arrived whole.

    Attributes:
        content: a serialised GraphDef; nobody has parsed it yet.
        device: full name of its device.
        timestamp: microseconds since the epoch.
    """

    content: bytes
    device: str
    timestamp: int


def graph_events(
    graph: bytes, device: str, timestamp: int, max_bytes: int = MAX_CHUNK_BYTES
) -> Iterator[bytes]:
    """The events that carry a serialised GraphDef (F8).

    >>> joiner = GraphJoiner()
    >>> events = list(graph_events(b"0123456789", "/device:CPU:0", 17, max_bytes=4))
    >>> [joiner.add(Event.FromString(event)) is not None for event in events]
    [False, False, True]
    """
    number = int.from_bytes(hashlib.sha256(graph).digest()[:8], "little")
    count = max(1, -(-len(graph) // max_bytes))
    time = double(1, float(timestamp))
    for index in range(count):
        prefix = f"{number},{device},{timestamp}|{index}|{count}|".encode()
        yield time + delimited(4, prefix + graph[index * max_bytes : (index + 1) * max_bytes])


@dataclass
class _Chunks:
    count: int
    parts: dict[int, Any] = field(default_factory=dict)
    nbytes: int = 0


class _Joiner:
    """Holds the chunks of what is not complete.

    Args:
        max_bytes: how much may wait for missing chunks.
        max_pending: how many incomplete things may.
    """

    def __init__(self, max_bytes: int = 1 << 30, max_pending: int = 1000) -> None:
        self._max_bytes = max_bytes
        self._max_pending = max_pending
        self._pending: dict[object, _Chunks] = {}
        self.pending_bytes = 0

    def _join(self, key: object, index: int, count: int, part: Any, nbytes: int) -> list[Any] | None:
        """All parts in order, once the last of them has come."""
        if not 0 <= index < count:
            raise WireError(f"Chunk {index} of {count} cannot be.")
        chunks = self._pending.get(key)
        if chunks is None:
            if len(self._pending) >= self._max_pending:
                raise WireError(f"More than {self._max_pending} things wait for missing chunks.")
            chunks = self._pending[key] = _Chunks(count)
        if chunks.count != count or index in chunks.parts:
            raise WireError(f"Chunk {index} of {count} contradicts an earlier one.")
        if self.pending_bytes + nbytes > self._max_bytes:
            raise WireError(f"More than {self._max_bytes} bytes wait for missing chunks.")
        chunks.parts[index] = part
        chunks.nbytes += nbytes
        self.pending_bytes += nbytes
        if len(chunks.parts) < count:
            return None
        del self._pending[key]
        self.pending_bytes -= chunks.nbytes
        return [chunks.parts[place] for place in range(count)]


class GraphJoiner(_Joiner):
    """Puts the chunks of graphs together."""

    def add(self, event: Any) -> ReceivedGraph | None:
        """Take a graph event; the graph if this was its last chunk.

        Raises:
            WireError: what stands before the chunk is not as it should be, or too much waits.
        """
        content: bytes = event.graph_def
        try:
            # Names of devices have neither commas nor bars; the content may have both.
            end = content.index(b"|", content.index(b"|", content.index(b"|") + 1) + 1)
            prefix = content[:end].decode()
            key, index, count = prefix.split("|")
            _, device, time = key.split(",")
            parts = self._join(key, int(index), int(count), content[end + 1 :], len(content))
            timestamp = int(time)
        except WireError:
            raise
        except ValueError as error:
            raise WireError(f"A graph begins with {content[:80]!r} instead of its description.") from error
        if parts is None:
            return None
        return ReceivedGraph(b"".join(parts), _bounded(device), _within_int64(timestamp))


# --- tensors -------------------------------------------------------------------------------------------


def tensor_events(record: Record, max_bytes: int = MAX_CHUNK_BYTES) -> Iterator[bytes]:
    """The events that carry one record (F9).

    Raises:
        ValueError: a single string is longer than a chunk may be.

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


class TensorJoiner(_Joiner):
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
        facts = _json(value.metadata.plugin_data.content)
        device = _text(facts, "device")
        count, index = _whole(facts, "numChunks", 1), _whole(facts, "chunkIndex", 0)
        node, slot, debug_op = _split_watch_key(value.node_name)
        timestamp = _microseconds(event.wall_time)
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
            parts = self._join(key, index, count, data, nbytes)
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
    tensor, _, debug_op = _bounded(key).rpartition(":")
    node, _, slot = tensor.rpartition(":")
    if not node or not debug_op or not slot.isdecimal() or len(slot) > 9:
        raise WireError(f"{key[:200]!r} is no watch key: those are written node:slot:DebugOp.")
    return node, int(slot), debug_op


# --- fields that anybody may have written --------------------------------------------------------------


def _json(text: str | bytes) -> dict[str, Any]:
    if len(text) > MAX_JSON_BYTES:
        raise WireError(f"A description of {len(text)} bytes is too long.")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{text[:80]!r} is no JSON: {error}.") from error
    if not isinstance(facts, dict):
        raise WireError(f"{text[:80]!r} is no JSON object.")
    return facts


def _whole(facts: dict[str, Any], name: str, default: int) -> int:
    value = facts.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise WireError(f"{name[:80]!r} must be a whole number, got {str(value)[:80]!r}.")
    return _within_int64(value)


def _within_int64(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise WireError(f"A number of {value.bit_length()} bits is too large.")
    return value


def _text(facts: dict[str, Any], name: str, default: str = "", limit: int = MAX_NAME_BYTES) -> str:
    value = facts.get(name, default)
    if not isinstance(value, str):
        raise WireError(f"{name!r} must be text, got {str(value)[:80]!r}.")
    return _bounded(value, limit)


def _texts(facts: dict[str, Any], name: str) -> tuple[str, ...]:
    value = facts.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise WireError(f"{name!r} must be a list of names, got {str(value)[:80]!r}.")
    return tuple(map(_bounded, value))


def _bounded(name: str, limit: int = MAX_NAME_BYTES) -> str:
    if len(name) > limit:
        raise WireError(f"A name of {len(name)} characters is too long: {name[:80]!r}…")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError as error:  # JSON can spell half a character
            raise WireError(f"{name[:80]!r} is no text.") from error
    return name


def _microseconds(wall_time: float) -> int:
    if not math.isfinite(wall_time) or not -(2.0**63) <= wall_time < 2.0**63:
        raise WireError(f"{wall_time} is no time.")
    return int(wall_time)
