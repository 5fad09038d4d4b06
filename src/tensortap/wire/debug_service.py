"""The gRPC service of tfdbg's debug servers: its messages, its methods, and what we add to it.

    EventReply, CallTraceback     messages that `tensorboard.compat.proto` lacks
    Event, GraphDef, TensorProto, DebuggedSourceFiles, OpLogProto    those that it has
    SEND_EVENTS, SEND_TRACEBACKS, SEND_SOURCE_FILES     full method names for a channel or a generic handler
    DISABLED, READ_ONLY, READ_WRITE     states of a gate: closed, open, open with a breakpoint
    MAX_CHUNK_BYTES     longer graphs and values travel in chunks (`events.py` splits and joins them)

On the wire the messages are those of TensorFlow, byte for byte, but their classes are registered under
names of our own: a process may import TensorFlow before or after this module.

What we add is agreed upon when a stream begins, so that every tfdbg client and server is still understood. A
server that takes batches (`batches.py`) says so in its initial metadata with the key `ACCEPTS_KEY`, whose
value is `ACCEPTS_BATCHES`; a client sends them, and the event that ends a run, only then. With `SERVER_KEY` it
gives its instance a name, so that clients notice when another one has taken its place and send their graphs
again. When a stream is over, `WRITTEN_KEY` in its trailing metadata says how many records of it were kept; without
that, a stream that ends well counts as kept whole. A client of ours sends `CLIENT_KEY`, with `PATIENCE_KEY` how many
seconds it waits at a breakpoint, and the token of a server that wants one under `TOKEN_KEY`, written by
`token_metadata` and read by `token_of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorboard.compat.proto.debug_pb2 import (  # type: ignore[attr-defined]
    DebuggedSourceFile,
    DebuggedSourceFiles,
)
from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[attr-defined]
from tensorboard.compat.proto.graph_pb2 import GraphDef  # type: ignore[attr-defined]
from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[attr-defined]
from tensorboard.compat.proto.tfprof_log_pb2 import CodeDef, OpLogProto  # type: ignore[attr-defined]

__all__ = [
    "ACCEPTS_BATCHES",
    "ACCEPTS_KEY",
    "CLIENT_KEY",
    "DISABLED",
    "EAGER_EXECUTION",
    "GRAPH_EXECUTION",
    "MAX_CHUNK_BYTES",
    "PATIENCE_KEY",
    "READ_ONLY",
    "READ_WRITE",
    "SEND_EVENTS",
    "SEND_SOURCE_FILES",
    "SEND_TRACEBACKS",
    "SERVER_KEY",
    "SERVICE",
    "TOKEN_KEY",
    "WRITTEN_KEY",
    "BatchMessage",
    "CallTraceback",
    "CodeDef",
    "DebuggedSourceFile",
    "DebuggedSourceFiles",
    "Event",
    "EventReply",
    "GraphDef",
    "KeyBlock",
    "OpLogProto",
    "TensorProto",
    "WireError",
    "token_metadata",
    "token_of",
]

SERVICE = "tensorflow.EventListener"
SEND_EVENTS = f"/{SERVICE}/SendEvents"
"""A stream of Event answered by a stream of EventReply."""
SEND_TRACEBACKS = f"/{SERVICE}/SendTracebacks"
"""One CallTraceback, answered by one EventReply."""
SEND_SOURCE_FILES = f"/{SERVICE}/SendSourceFiles"
"""One DebuggedSourceFiles, answered by one EventReply."""

MAX_CHUNK_BYTES = 4000 * 1024

DISABLED, READ_ONLY, READ_WRITE = 1, 2, 3
GRAPH_EXECUTION, EAGER_EXECUTION = 1, 2

CLIENT_KEY = "tensortap-client"
PATIENCE_KEY = "tensortap-patience"
ACCEPTS_KEY = "tensortap-accepts"
ACCEPTS_BATCHES = "batch-1"
SERVER_KEY = "tensortap-server"
WRITTEN_KEY = "tensortap-written"
TOKEN_KEY = "authorization"
_BEARER = "Bearer "


class WireError(ValueError):
    """What came over the network is not what the protocol allows; the message says why."""


def token_metadata(token: str) -> tuple[str, str]:
    """The metadata item that carries a token."""
    return TOKEN_KEY, _BEARER + token


def token_of(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token that came with a call, None if there is none.

    >>> token_of([token_metadata("secret")])
    'secret'
    """
    for key, value in metadata:
        if key == TOKEN_KEY and isinstance(value, str) and value.startswith(_BEARER):
            return value.removeprefix(_BEARER)
    return None


_TYPES = {
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "enum": descriptor_pb2.FieldDescriptorProto.TYPE_ENUM,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "message": descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}
_PACKAGE = "tensortap"


def _describe() -> descriptor_pb2.FileDescriptorProto:
    """The messages, with TensorFlow's own field numbers and types."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tensortap/wire/debug_service.proto", package=_PACKAGE, syntax="proto3"
    )
    for used in (CodeDef, TensorProto):
        file.dependency.append(used.DESCRIPTOR.file.name)

    reply = file.message_type.add(name="EventReply")
    _field(reply, 1, "debug_op_state_changes", "message", "EventReply.DebugOpStateChange", repeated=True)
    _field(reply, 2, "tensor", "message", TensorProto.DESCRIPTOR.full_name)
    change = reply.nested_type.add(name="DebugOpStateChange")
    _field(change, 1, "state", "enum", "EventReply.DebugOpStateChange.State")
    _field(change, 2, "node_name", "string")
    _field(change, 3, "output_slot", "int32")
    _field(change, 4, "debug_op", "string")
    _enum(change, "State", "STATE_UNSPECIFIED", "DISABLED", "READ_ONLY", "READ_WRITE")

    traceback = file.message_type.add(name="CallTraceback")
    _field(traceback, 1, "call_type", "enum", "CallTraceback.CallType")
    _field(traceback, 2, "call_key", "string")
    _field(traceback, 3, "origin_stack", "message", CodeDef.DESCRIPTOR.full_name)
    _field(
        traceback, 4, "origin_id_to_string", "message", "CallTraceback.OriginIdToStringEntry", repeated=True
    )
    _field(traceback, 5, "graph_traceback", "message", OpLogProto.DESCRIPTOR.full_name)
    _field(traceback, 6, "graph_version", "int64")
    entry = traceback.nested_type.add(name="OriginIdToStringEntry")
    entry.options.map_entry = True
    _field(entry, 1, "key", "int64")
    _field(entry, 2, "value", "string")
    _enum(traceback, "CallType", "UNSPECIFIED", "GRAPH_EXECUTION", "EAGER_EXECUTION")

    # Ours; see batches.py.
    block = file.message_type.add(name="KeyBlock")
    _field(block, 1, "keys", "message", "KeyBlock.Key", repeated=True)
    key = block.nested_type.add(name="Key")
    _field(key, 1, "node_name", "string")
    _field(key, 2, "output_slot", "int32")
    _field(key, 3, "debug_op", "string")
    _field(key, 4, "device", "string")
    _field(key, 5, "dtype", "string")
    batch = file.message_type.add(name="Batch")
    _field(batch, 1, "table", "int32")
    _field(batch, 2, "key_block", "bytes")
    _field(batch, 3, "rows", "bytes")
    _field(batch, 4, "data", "bytes")
    return file


def _field(
    message: Any, number: int, name: str, kind: str, type_name: str = "", repeated: bool = False
) -> None:
    if type_name and not type_name.startswith("tensorboard."):
        type_name = f"{_PACKAGE}.{type_name}"
    message.field.add(
        number=number,
        name=name,
        type=_TYPES[kind],
        label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        if repeated
        else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        type_name=f".{type_name}" if type_name else None,
    )


def _enum(message: Any, name: str, *values: str) -> None:
    enum = message.enum_type.add(name=name)
    for number, value in enumerate(values):
        enum.value.add(name=value, number=number)


_file = descriptor_pool.Default().AddSerializedFile(_describe().SerializeToString())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_file.message_types_by_name[name])


EventReply = _class("EventReply")
CallTraceback = _class("CallTraceback")
KeyBlock = _class("KeyBlock")
BatchMessage = _class("Batch")
