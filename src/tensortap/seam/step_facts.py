"""What an engine knows of a profiled step beyond TensorFlow's `StepStats` message.

The message says what ran when and on which device, as TensorFlow fills it: times since the epoch, in microseconds and
nanoseconds; labels `name = Op(input, input)` whose inputs are `node` for slot 0 and `node:slot` for the others; the
recorded thread in `thread_id`, its name in the device's `thread_names`. The facts here are found by node name and
say where in the program it belongs. They exist in memory, beside the message, and on disk inside the trace that
`Timeline` writes: as arguments of its events and in its `otherData`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tensortap.phases import module_of, phase_of
from tensortap.records import Frame, Node

__all__ = ["PHASES", "Block", "OpFacts", "StepFacts", "TensorLife"]

PHASES = ("forward", "backward", "optimizer")
"""The parts of a training step, in their order."""


@dataclass(frozen=True, slots=True)
class OpFacts:
    """Where an operation belongs.

    Attributes:
        node: name of the node, as in `NodeExecStats.node_name`.
        op_type: the engine's name of the operation, such as `aten::addmm`.
        module: as `places.module_of` says, such as `model/0/attn`; empty outside of modules.
        phase: as `places.phase_of` says, one of `PHASES`; empty if it is not known.
        source_file: the user's line that made it; for a gradient that of its forward node.
        inputs: tensor names, `node:slot`.
        caller: where that line lies in an installed package, the user's own line that led there.
        sequence: autograd's number, the same for an operation and its gradient; -1 if there is none.
        stack: the user's lines, outermost first, if they are wanted.

    >>> OpFacts.of(Node("gradients/model/fc/addmm/mm", "aten::mm", forward="model/fc/addmm")).module
    'model/fc'
    """

    node: str
    op_type: str = ""
    module: str = ""
    phase: str = ""
    source_file: str = ""
    source_line: int = 0
    source_function: str = ""
    inputs: tuple[str, ...] = ()
    sequence: int = -1
    stack: tuple[Frame, ...] = ()
    caller: Frame | None = None

    @classmethod
    def of(cls, node: Node, sequence: int = -1) -> OpFacts:
        """The facts that a node of a graph holds already."""
        phase = phase_of(node)
        source = node.source
        return cls(
            node.name,
            node.op_type,
            module_of(node) or "",
            phase if phase in PHASES else PHASES[0],
            source.file if source else "",
            source.line if source else 0,
            source.function if source else "",
            node.inputs,
            sequence,
            caller=None if node.own_source == source else node.own_source,
        )


@dataclass(frozen=True, slots=True)
class TensorLife:
    """When the memory of a tensor was taken and given back, as the allocator saw it.

    Attributes:
        tensor: `node:slot`, or a node's name followed by `:temporary` for memory that no output keeps.
        allocator: its name, the same as in the message, such as `cpu`.
        start_nanos: since the epoch; at most the start of the step for what was there before.
        end_nanos: None for what outlived the step.
    """

    tensor: str
    allocator: str
    nbytes: int
    start_nanos: int
    end_nanos: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the program that the user named, around the operations in it.

    Attributes:
        thread: as in `NodeExecStats.thread_id`.
        start, end: in nanoseconds since the epoch.
    """

    name: str
    thread: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The facts of one profiled step in one process.

    Attributes:
        step: the number that names the trace; None if there is none.
        ops: by node name. What is missing is shown as the message has it.
        lives: exact lifetimes of tensors. Empty: they are taken from the dataflow, as TensorFlow does.
        start_nanos, end_nanos: the step as the program saw it, since the epoch; 0: its first and last operation.
        blocks: what the user named.

    >>> facts = StepFacts.of([Node("model/fc/addmm", "aten::addmm")], step=100)
    >>> facts.ops["model/fc/addmm"].phase
    'forward'
    """

    step: int | None = None
    ops: Mapping[str, OpFacts] = field(default_factory=dict)
    lives: tuple[TensorLife, ...] = ()
    start_nanos: int = 0
    end_nanos: int = 0
    rank: int = 0
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    blocks: tuple[Block, ...] = ()

    @classmethod
    def of(cls, nodes: Iterable[Node], step: int | None = None, rank: int = 0) -> StepFacts:
        """The facts that the nodes of a graph hold already."""
        return cls(step, {node.name: OpFacts.of(node) for node in nodes}, rank=rank)
