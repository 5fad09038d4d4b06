"""Operations of a program, their tensors and lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Frame", "Node", "Position", "TensorSpec", "new_node", "split_tensor_name", "tensor_name"]


_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_FRAME = re.compile(r"(?P<file>.*):(?P<line>\d+) in (?P<function>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's program.

    >>> print(Frame("train.py", 12, "step"))
    train.py:12 in step
    >>> Frame.of_text("train.py:12 in step")
    Frame(file='train.py', line=12, function='step')
    """

    file: str
    line: int
    function: str

    @classmethod
    def of_text(cls, text: str) -> Frame | None:
        """From how it is written in graphs; None if it is something else."""
        match = _FRAME.fullmatch(text)
        return cls(match["file"], int(match["line"]), match["function"]) if match else None

    @property
    def is_installed(self) -> bool:
        """Whether it lies in a package that was installed, so that somebody else wrote it."""
        return _INSTALLED.search(self.file) is not None

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

    @property
    def kind(self) -> tuple[str, int]:
        """What tensors have in common that may take turns: dtype and number of dimensions."""
        return self.dtype, len(self.shape)

    def covers(self, other: TensorSpec) -> bool:
        """Whether it describes another tensor, too, some of its dimensions being open.

        >>> TensorSpec("float32", (None, 8)).covers(TensorSpec("float32", (3, 8)))
        True
        """
        mine, theirs = self.shape, other.shape
        if self.dtype != other.dtype or len(mine) != len(theirs):
            return False
        return all(a is None or a == b for a, b in zip(mine, theirs, strict=True))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


class Position(NamedTuple):
    """Where in a program something is executed: see the attributes of the same names in `Node`."""

    phase: str
    module: str | None = None


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
        is_view: the outputs share memory with the first input, so they are not new values.
        phase: where in a step it belongs: `forward`, `backward`, `optimizer`; `input` or `parameter` for what was there
            before the step, except the state of an optimizer. Empty if nobody has told (see `tensortap.phases`).
        module: the path of the module it was executed in, or whose gradient or parameter it works on.
        writes: for every output, the place among the inputs of the one that it was written into, -1 if it has memory
            of its own; empty for an operation that writes into nothing.

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
    phase: str = ""
    module: str | None = None
    writes: tuple[int, ...] = ()

    @property
    def source(self) -> Frame | None:
        """The innermost line of the user's program."""
        return self.stack[-1] if self.stack else None

    @property
    def own_source(self) -> Frame | None:
        """The innermost line that lies in no installed package; `source` if all of them do."""
        return next((each for each in reversed(self.stack) if not each.is_installed), self.source)

    def tensor(self, slot: int = 0) -> str:
        """Name of one output."""
        return tensor_name(self.name, slot)


class _Draft:
    """A node that can still be written to: it has the attributes of one, in the same places of its memory."""

    __slots__ = Node.__slots__


def new_node(
    name: str,
    op_type: str,
    inputs: tuple[str, ...],
    control_inputs: tuple[str, ...],
    outputs: tuple[TensorSpec, ...],
    device: str,
    attributes: Mapping[str, Any],
    stack: tuple[Frame, ...],
    forward: str | None,
    is_view: bool,
    phase: str,
    module: str | None,
    writes: tuple[int, ...],
) -> Node:
    """The same as `Node` of these, in a quarter of the time: a frozen one calls a function for each attribute.

    For engines, which make a node of every operation of a program that they have not seen yet.

    >>> parts = ("fc/relu", "aten::relu", ("x:0",), (), (), "", {}, (), None, False, "forward", "fc", ())
    >>> new_node(*parts) == Node(*parts)
    True
    """
    draft: Any = _Draft()
    draft.name = name
    draft.op_type = op_type
    draft.inputs = inputs
    draft.control_inputs = control_inputs
    draft.outputs = outputs
    draft.device = device
    draft.attributes = attributes
    draft.stack = stack
    draft.forward = forward
    draft.is_view = is_view
    draft.phase = phase
    draft.module = module
    draft.writes = writes
    draft.__class__ = Node
    made: Node = draft
    return made


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
