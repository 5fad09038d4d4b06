"""The nouns every part of tensortap shares: frozen, and free of any framework.

run       one call of `session.run`, normally one training step; numbered from 0 in a session
step      the value of the global step at a run
node      one executed operation; its name is unique within its graph, scopes are separated by `/`
tensor    one output of a node, written `node:slot`
watch key `node:slot:DebugOp`
debug op  reduces a live tensor to a record
record    what one debug op made of one tensor at one moment of a run
batch     many records as arrays, for runs that make thousands of small ones
key       what records of one watch have in common from run to run; a batch knows it by number
update    one step of an optimizer: what led to it, and what it did to each parameter
device    `/job:<job>/replica:0/task:<rank>/device:CPU:0`, one spelling on all engines
"""

from __future__ import annotations

from tensortap.records.batch import MAX_BATCH_RANK, RECORD_ROW, KeyTable, RecordBatch, RecordKey
from tensortap.records.device import Device, device_name
from tensortap.records.loading import BadSample
from tensortap.records.node import (
    Frame,
    Node,
    Position,
    TensorSpec,
    new_node,
    split_tensor_name,
    tensor_name,
)
from tensortap.records.parameter_update import ParameterTable, ParameterUpdate
from tensortap.records.record import Record
from tensortap.records.run import Circumstances, RunInfo
from tensortap.records.shard import Shard
from tensortap.records.update import (
    Event,
    Group,
    KeptGraphs,
    LoaderUse,
    Mode,
    StrayTensor,
    Update,
)

__all__ = [
    "MAX_BATCH_RANK",
    "RECORD_ROW",
    "BadSample",
    "Circumstances",
    "Device",
    "Event",
    "Frame",
    "Group",
    "KeptGraphs",
    "KeyTable",
    "LoaderUse",
    "Mode",
    "Node",
    "ParameterTable",
    "ParameterUpdate",
    "Position",
    "Record",
    "RecordBatch",
    "RecordKey",
    "RunInfo",
    "Shard",
    "StrayTensor",
    "TensorSpec",
    "Update",
    "device_name",
    "new_node",
    "split_tensor_name",
    "tensor_name",
]
