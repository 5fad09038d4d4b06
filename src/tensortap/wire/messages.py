"""The classes of all messages that we read and write.

They are made of `proto/*.proto`, which `make protos` turns into the description that is loaded here. On the wire and on
disk they are the field's own messages, number by number, but the classes live in a pool of their own: TensorFlow and
TensorBoard may be in the same process and be imported before or after, and any release of protobuf will do, as no
code was generated for one. Fields that our `.proto` files leave out are kept when a message is written again.

>>> Event.FromString(Event(step=3).SerializeToString()).step
3
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

__all__ = [
    "BatchMessage",
    "CallTraceback",
    "CodeDef",
    "DebuggedSourceFile",
    "DebuggedSourceFiles",
    "DecodeError",
    "Event",
    "EventReply",
    "GraphDef",
    "HistogramProto",
    "KeyBlock",
    "MetaGraphDef",
    "OpLogProto",
    "RunMetadata",
    "SessionLog",
    "StepStats",
    "Summary",
    "TaggedRunMetadata",
    "TensorProto",
]

_PACKAGE = "tensortap"


def _load() -> descriptor_pool.DescriptorPool:
    content = (Path(__file__).parent / "proto" / "messages.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_pool = _load()


def _class(name: str) -> Any:
    made: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
    made.__module__ = __name__  # where pickle finds it again
    return made


BatchMessage = _class("Batch")
CallTraceback = _class("CallTraceback")
CodeDef = _class("CodeDef")
DebuggedSourceFile = _class("DebuggedSourceFile")
DebuggedSourceFiles = _class("DebuggedSourceFiles")
Event = _class("Event")
EventReply = _class("EventReply")
GraphDef = _class("GraphDef")
HistogramProto = _class("HistogramProto")
KeyBlock = _class("KeyBlock")
MetaGraphDef = _class("MetaGraphDef")
OpLogProto = _class("OpLogProto")
RunMetadata = _class("RunMetadata")
SessionLog = _class("SessionLog")
StepStats = _class("StepStats")
Summary = _class("Summary")
TaggedRunMetadata = _class("TaggedRunMetadata")
TensorProto = _class("TensorProto")
