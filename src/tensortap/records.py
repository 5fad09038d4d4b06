"""The nouns every part of tensortap shares: frozen, and free of any framework.

run       one call of `session.run`, normally one training step; numbered from 0 in a session
step      the value of the global step at a run
node      one executed operation; its name is unique within its graph, scopes are separated by `/`
tensor    one output of a node, written `node:slot`
watch key `node:slot:DebugOp`
debug op  reduces a live tensor to a record
record    what one debug op made of one tensor at one moment of a run
device    `/job:<job>/replica:0/task:<rank>/device:CPU:0`, one spelling on all engines
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Device",
    "Frame",
    "Node",
    "Record",
    "RunInfo",
    "TensorSpec",
    "device_name",
    "split_tensor_name",
    "tensor_name",
]


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's program.

    >>> print(Frame("train.py", 12, "step"))
    train.py:12 in step
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor before its value: dtype and shape (None: varies between runs).

    >>> print(TensorSpec("float32", (None, 8)))
    float32[?, 8]
    """

    dtype: str
    shape: tuple[int | None, ...]

    def merged_with(self, other: TensorSpec) -> TensorSpec:
        """The spec that describes both: dimensions that differ become None, a new dtype wins."""
        if self == other:
            return self
        if self.dtype != other.dtype or len(self.shape) != len(other.shape):
            return other
        dims = tuple(a if a == b else None for a, b in zip(self.shape, other.shape, strict=True))
        return TensorSpec(self.dtype, dims)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Node:
    """One executed operation.

    Attributes:
        name: unique within the graph, stable from run to run.
        op_type: the engine's own name for the operation, such as `aten::addmm`; or one of `Placeholder`
            (an input of the step), `Variable` (parameter, buffer, optimizer state), `Const` (a tensor
            made outside the run), `AccumulateGrad` (the gradient of a
            parameter as autograd put it in place, on this rank), `Derived`.
        inputs: tensor names, in the order of the operation's arguments.
        control_inputs: names of nodes that changed, in place, memory that an input is a view of.
        outputs: dtype and shape of every slot.
        device: full device name.
        attributes: the arguments that are not tensors, by argument name.
        stack: the user's source lines, outermost first; for gradients those of the forward node.
        forward: for a gradient node, the name of the forward node it belongs to.
        is_view: the outputs share memory with an input, so they are not new values.

    >>> node = Node("model/fc/addmm", "aten::addmm", inputs=("model/fc/bias:0", "x:0"))
    >>> node.tensor(0)
    'model/fc/addmm:0'
    """

    name: str
    op_type: str
    inputs: tuple[str, ...] = ()
    control_inputs: tuple[str, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    device: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    stack: tuple[Frame, ...] = ()
    forward: str | None = None
    is_view: bool = False

    @property
    def source(self) -> Frame | None:
        """The innermost line of the user's program."""
        return self.stack[-1] if self.stack else None

    def tensor(self, slot: int = 0) -> str:
        """Name of one output."""
        return tensor_name(self.name, slot)


@dataclass(frozen=True, slots=True)
class Device:
    """One device a session can place nodes on.

    >>> Device(device_name("cpu"), "CPU").name
    '/job:localhost/replica:0/task:0/device:CPU:0'
    """

    name: str
    device_type: str
    memory_limit_bytes: int = 0
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What one debug op made of one tensor.

    Attributes:
        debug_op: name of the debug op without its attributes, such as `DebugIdentity`.
        device: full device name.
        timestamp: microseconds since the epoch at which the tensor was complete.
        dtype: of the record's own value, as NumPy or ml_dtypes spell it, or `string`.
        shape: of the record's own value.
        data: the value: C-contiguous little-endian bytes, anything that supports the buffer protocol; for
            `string` a list of bytes, one per element; None for a tensor without a value.
        initialized: False for a tensor that had no value yet.

    >>> record = Record("fc/addmm", 0, "DebugNanCount", "", 1, "int64", (1,), bytes(8))
    >>> record.watch_key, record.nbytes
    ('fc/addmm:0:DebugNanCount', 8)
    """

    node_name: str
    output_slot: int
    debug_op: str
    device: str
    timestamp: int
    dtype: str
    shape: tuple[int, ...]
    data: Any
    initialized: bool = True

    @property
    def tensor_name(self) -> str:
        """The tensor this is about."""
        return tensor_name(self.node_name, self.output_slot)

    @property
    def watch_key(self) -> str:
        """Tensor and debug op."""
        return f"{self.tensor_name}:{self.debug_op}"

    @property
    def nbytes(self) -> int:
        """Size of the value."""
        if self.data is None:
            return 0
        return sum(map(len, self.data)) if self.dtype == "string" else memoryview(self.data).nbytes


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, as it is described next to its records.

    Attributes:
        index: number of the run in its session, from 0.
        global_step: step at which the run was executed, -1 if unknown.
        timestamp: microseconds since the epoch at its start.
        task: rank of the process.
        fetches: printed form of what was fetched.
        feed_keys: printed form of what was fed, or `None`.
        input_names: names of the fed tensors.
        output_names: names of the fetched tensors.
        target_nodes: names of nodes that were run for their effect.

    >>> RunInfo(index=0, global_step=12, timestamp=1).task
    0
    """

    index: int
    global_step: int
    timestamp: int
    task: int = 0
    fetches: str = "None"
    feed_keys: str = "None"
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    target_nodes: tuple[str, ...] = ()


def tensor_name(node: str, slot: int) -> str:
    """The name of output `slot` of `node`."""
    return f"{node}:{slot}"


def split_tensor_name(name: str) -> tuple[str, int | None]:
    """Split `node:slot`; the slot is None when the name has none.

    >>> split_tensor_name("encoder/fc/addmm:0")
    ('encoder/fc/addmm', 0)
    >>> split_tensor_name("encoder/fc/addmm")
    ('encoder/fc/addmm', None)
    """
    node, colon, slot = name.rpartition(":")
    if colon and slot.isdecimal():
        return node, int(slot)
    return name, None


def device_name(kind: str, index: int = 0, *, rank: int = 0, job: str = "localhost") -> str:
    """The full name of a device, spelled the same on every engine.

    >>> device_name("cpu")
    '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    return f"/job:{job}/replica:0/task:{rank}/device:{kind.upper()}:{index}"
