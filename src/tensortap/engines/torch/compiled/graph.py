"""A graph of the compiler, described in the terms of a run and given its taps.

The graphs are those that AOTAutograd hands to inductor: functional, decomposed into ATen operators, one for the
forward and one for the backward pass. Each operator still knows the modules and the source line it came from,
and by its sequence number a gradient knows the operator it is the gradient of.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tensortap.engines.torch.compiled.pill import can_summarise, pill
from tensortap.engines.torch.schema import Op, op_of
from tensortap.engines.torch.values import dtype_name, plain_shape
from tensortap.records import Frame, TensorSpec

__all__ = ["GraphOp", "Module", "Ref", "TappedGraph", "original_name"]

_LINE = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
# What PyTorch calls the rest of a function, after something in it that cannot be compiled.
_RESUMED = re.compile("torch_dynamo_resume_in_(.+)_at_")
_TORCH = str(Path(torch.__file__).parent) + "/"


class Module(NamedTuple):
    """A module as the compiler remembers it."""

    identity: int
    class_name: str


class Ref(NamedTuple):
    """Where an operator's input comes from.

    `input`: an argument of the graph. `op`: an operator of the graph. `forward`: an operator of the forward
    graph, whose value the backward graph computes again instead of keeping it.
    """

    kind: Literal["input", "op", "forward"]
    position: int
    slot: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class GraphOp:
    """One operator of a graph.

    Attributes:
        op: its schema.
        modules: the modules it is called in, outermost first; for a gradient those of the forward operator.
        inputs: where its tensors come from, in the order of its arguments.
        outputs: dtype and shape of every slot.
        device: where it computes.
        attributes: its other arguments.
        stack: the user's source lines within the compiled function, outermost first.
        is_gradient: it belongs to the backward pass.
        forward: position, in the forward graph, of the operator that it is a part of the gradient of.
        is_recomputed: an operator of the forward pass that only the backward graph executes.
        taps: the slots that are summarised, each with the number of its tap.
    """

    op: Op
    modules: tuple[Module, ...]
    inputs: tuple[Ref, ...]
    outputs: tuple[TensorSpec, ...]
    device: torch.device | None
    attributes: Mapping[str, Any]
    stack: tuple[Frame, ...]
    is_gradient: bool
    forward: int | None
    is_recomputed: bool
    taps: tuple[tuple[int, int], ...]


class TappedGraph:
    """Describes a graph, and adds to it the taps whose summaries are returned behind its own outputs.

    Args:
        module: the graph; changed in place by `insert_taps`, not before.
        root: the module whose `forward` was compiled, if it was one.
        forward: for a backward graph, the graph it is the backward of.

    Attributes:
        ops: its operators, in order.
        arguments: positions of the arguments that its operators use.
        saved: of a backward graph, positions of the arguments that the forward graph has computed.
        outputs: for each of its own outputs, where it comes from; None for what is no tensor.
        writes: graph arguments that are overwritten, each with the position of the writing operator.
        tap_count: how many summaries it makes.
        first_parameters: names of the parameters among its arguments when it was first executed, right after it
            was compiled.
    """

    def __init__(self, module: fx.GraphModule, root: Module | None, forward: TappedGraph | None) -> None:
        self.forward = forward
        self.ops: list[GraphOp] = []
        self.writes: list[tuple[int, int]] = []
        self.first_parameters: dict[int, str] | None = None
        self.saved: list[int] = []
        self._root = root
        self._module = module
        self._positions: dict[int, int] = {}  # of operators of the forward pass, by sequence number
        self._refs: dict[str, Ref] = {}  # by the name of the compiler's node
        self._tapped: list[fx.Node] = []
        arguments = 0
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known = None if forward is None else forward._refs.get(node.name)
                if known is not None and known.kind == "op":
                    self.saved.append(arguments)
                self._refs[node.name] = Ref("input", arguments)
                arguments += 1
            elif node.op == "call_function" and node.target is not operator.getitem:
                self._add(node)
        returned: Any = module.graph.output_node().args[0]
        self.outputs = [self._ref(each) for each in returned]
        self.tap_count = len(self._tapped)
        used = {ref.position for op in self.ops for ref in op.inputs if ref.kind == "input"}
        self.arguments = sorted(used)

    def insert_taps(self) -> None:
        """Summarise every tapped value where it is made, and return the summaries behind the other outputs."""
        graph = self._module.graph
        rows = []
        for node in self._tapped:
            with graph.inserting_after(node):
                row = graph.call_function(pill, (node,))
            value = node.meta["val"]
            with value.fake_mode:
                row.meta["val"] = pill(value)
            rows.append(row)
        output: Any = graph.output_node()
        output.args = ((*output.args[0], *rows),)
        self._module.recompile()
        self._tapped.clear()
        del self._module  # it goes on to the compiler; only the description stays

    def _add(self, node: Any) -> None:
        """Describe an operator that makes tensors; arithmetic on sizes is none of ours."""
        value = node.meta.get("val")
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        if not any(isinstance(each, torch.Tensor) for each in values):
            return
        # The compiler may compute a part of a gradient in the forward graph, and a forward value once more in the
        # backward graph, whichever saves memory.
        op = op_of(node.target)
        is_gradient = not op.writes and "backward" in node.meta.get("partitioner_tag", "")
        is_recomputed = not op.writes and not is_gradient and self.forward is not None
        known = None if self.forward is None else self.forward._refs.get(node.name)
        if is_recomputed and known is not None and known.kind == "op":
            self._refs[node.name] = Ref("forward", known.position)
            return
        position = len(self.ops)
        self._refs[node.name] = Ref("op", position)
        sequence = node.meta.get("seq_nr")
        if sequence is not None and not is_gradient and not op.writes:
            # The first one: it stands for an operator that was taken apart, while what follows may be something
            # without a gradient, which shows the number of the operator before it.
            self._positions.setdefault(sequence, position)
        inputs = [each for each in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(each, fx.Node)]
        if op.writes:
            # What is left of writing in a functional graph: the copy to an argument that the program changes.
            written = self._ref(inputs[0])
            if written is not None and written.kind == "input":
                self.writes.append((written.position, position))
        tensors = [each for each in values if isinstance(each, torch.Tensor)]
        self.ops.append(
            GraphOp(
                op=op,
                modules=self._modules_of(node, is_gradient),
                inputs=tuple(ref for each in inputs if (ref := self._ref(each)) is not None),
                outputs=tuple(
                    TensorSpec(dtype_name(each.dtype), plain_shape(each.shape)) for each in tensors
                ),
                device=tensors[0].device,
                attributes=op.attributes(*_example_arguments(node)),
                stack=_stack_of(node),
                is_gradient=is_gradient,
                forward=(self.forward or self)._positions.get(sequence) if is_gradient else None,
                is_recomputed=is_recomputed,
                taps=self._tap(node, op, values) if inputs else (),  # without inputs it is a constant
            )
        )

    def _tap(self, node: fx.Node, op: Op, values: Sequence[Any]) -> tuple[tuple[int, int], ...]:
        """Tap what an operator makes: not views, and not what it only copies into an argument of the graph."""
        if op.is_view or op.writes:
            return ()
        if not isinstance(node.meta["val"], (tuple, list)):
            outputs = {0: node}
        else:
            # What nobody takes out of the tuple is not computed, or not kept.
            taken: Any = [user for user in node.users if user.target is operator.getitem]
            outputs = {each.args[1]: each for each in taken}
        taps = []
        for position, output in sorted(outputs.items()):
            if can_summarise(values[position]):
                taps.append((_slot(node, position), len(self._tapped)))
                self._tapped.append(output)
        return tuple(taps)

    def _ref(self, node: Any) -> Ref | None:
        """Where the value of a compiler's node comes from; None for sizes and other non-tensors."""
        if not isinstance(node, fx.Node):
            return None
        if node.target is operator.getitem:
            made_by = self._ref(node.args[0])
            return None if made_by is None else made_by._replace(slot=_slot(node.args[0], node.args[1]))  # type: ignore[arg-type]
        if node.op == "placeholder" and not isinstance(node.meta.get("val"), torch.Tensor):
            return None
        return self._refs.get(node.name)

    def _modules_of(self, node: fx.Node, is_gradient: bool) -> tuple[Module, ...]:
        stack = node.meta.get("fwd_nn_module_stack" if is_gradient else "nn_module_stack") or {}
        # Keys are identities of modules, with a mark behind them when a module is called again.
        entries = ((str(key).partition("@")[0], kind) for key, (_, kind) in stack.items())
        inner = (Module(int(key), _class_name(kind)) for key, kind in entries if key.isdecimal())
        return (*((self._root,) if self._root is not None else ()), *inner)


def original_name(function: str) -> str:
    """The name a function has in the program.

    >>> original_name("torch_dynamo_resume_in_forward_at_71")
    'forward'
    """
    resumed = _RESUMED.match(function)
    return resumed[1] if resumed else function


def _slot(node: Any, position: int) -> int:
    """The output slot of what is at a position of a returned tuple: only tensors count."""
    values = node.meta["val"]
    if not isinstance(values, (tuple, list)):
        return 0
    return sum(isinstance(each, torch.Tensor) for each in values[:position])


def _class_name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind)).rpartition(".")[2]


def _example_arguments(node: fx.Node) -> tuple[Any, Any]:
    """The arguments of a node, with examples in the place of values."""
    return fx.node.map_aggregate(
        (node.args, node.kwargs), lambda each: each.meta.get("val") if isinstance(each, fx.Node) else each
    )


def _stack_of(node: fx.Node) -> tuple[Frame, ...]:
    lines = _LINE.findall(node.meta.get("stack_trace") or "")
    return tuple(
        Frame(file, int(line), original_name(function))
        for file, line, function in lines
        if not file.startswith(_TORCH)
    )
