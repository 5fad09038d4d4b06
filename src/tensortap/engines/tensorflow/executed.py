"""What TensorFlow executes, under the names the user knows.

Between the graph that a program makes and the one that is executed, TensorFlow prunes, folds and fuses ops, puts the
bodies of functions in the place of their calls, and renames. Here every executed node is led back to the op it was made
of, and every op that is not executed gets a reason.

    executed                          known as
    _arg_x_0_0                        x
    while/body/_9/mul_0               while/body/mul, made by the op mul in the body of while
    PartitionedCall/Sqrt              the same, made by Sqrt in the function that was called
    Relu  _MklNativeFusedMatMul       Relu, of the type _FusedMatMul; MatMul and BiasAdd are fused into it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tensortap.engines.tensorflow.fused import Fused, is_fused
from tensortap.engines.tensorflow.graph import TensorFlowGraph
from tensortap.engines.tensorflow.observer.interface import ExecutedGraph, ExecutedNode
from tensortap.records import Node, TensorSpec

__all__ = ["KnownGraph", "Origins", "missing_reason"]

_ARGUMENT = re.compile(r"^_arg_(.+)_\d+_\d+$")
_RENUMBERED = re.compile(r"(?:/unary_ops_composition)?(?:_\d+|/_\d+|__cf__\d+)*$")
_BRANCH = re.compile(r"^(.+?)/(body|cond|then|else)/_\d+/(.+)$")
_BRANCHES = re.compile(r"/(body|cond|then|else)/_\d+(?=/)")
_ATTRIBUTES = {"body": "body", "cond": "cond", "then": "then_branch", "else": "else_branch"}
_MKL = re.compile(r"^_Mkl(?:Native)?(.+)$")
_PLUMBING = frozenset(
    f"{ref}{kind}" for kind in ("Enter", "Exit", "Merge", "NextIteration", "Switch") for ref in ("", "Ref")
) | {"LoopCond", "_SwitchN"}
"""They pass a value on."""
_CALLS = re.compile(r"(?:Stateful)?PartitionedCall(?:_\d+)?/")
_TAP = "TensortapTap"  # of another watch of the same run
_WITHOUT_VALUE = frozenset(
    ["_Retval", "_DeviceRetval", "_Send", "_HostSend", "_Recv", "_HostRecv", _TAP]
)  # what is received was recorded where it was made, and has its name


class Origins:
    """Finds the op that an executed node was made of."""

    def __init__(self, graph: TensorFlowGraph) -> None:
        self._graph = graph

    def find(self, name: str, body: Any = None, prefix: str = "") -> tuple[Any, Node, str] | None:
        """The op, its node, and the name it is known by; None for what the runtime made itself.

        Args:
            name: of the executed node.
            body: the graph that was executed, if it is not the session's but that of a function.
            prefix: what its names begin with.
        """
        tf_graph = self._graph.tf_graph if body is None else body
        argument = _ARGUMENT.match(name)
        rest = name if argument is None else argument[1]
        while True:
            inner = self._inside(tf_graph, rest)
            if inner is None:
                break
            tf_graph, head, rest = inner
            prefix += head
        op = _operation(tf_graph, rest)
        if op is None:
            shorter = _RENUMBERED.sub("", rest)
            op = _operation(tf_graph, shorter) if shorter else None
        if op is None:
            return None
        node = self._graph.node_of(op, tf_graph)
        return op, node, prefix + op.name

    def _inside(self, tf_graph: Any, name: str) -> tuple[Any, str, str] | None:
        """The body of a function that a name leads into, how it is called, and the rest of the name."""
        match = _BRANCH.match(name)
        if match is not None:
            caller = _operation(tf_graph, match[1]) or _operation(tf_graph, _RENUMBERED.sub("", match[1]))
            body = None if caller is None else self._called(caller, _ATTRIBUTES[match[2]])
            if body is not None:
                return body, f"{caller.name}/{match[2]}/", match[3]
        place = name.find("/")
        while place >= 0:
            caller = _operation(tf_graph, name[:place])
            body = None if caller is None else self._called(caller, "f")
            if body is not None and _operation(tf_graph, name) is None:
                return body, name[: place + 1], name[place + 1 :]
            place = name.find("/", place + 1)
        return None

    def _called(self, op: Any, attribute: str) -> Any:
        try:
            called = op.get_attr(attribute)
        except ValueError:
            return None
        name = getattr(called, "name", None)
        return None if name is None else self._graph.function(name)


def _operation(tf_graph: Any, name: str) -> Any:
    try:
        return tf_graph.get_operation_by_name(name)
    except (KeyError, ValueError):
        return None


class KnownGraph:
    """An executed graph, node by node, as records and sinks know it.

    Attributes:
        nodes: for each executed node the node it is known as; None for what has no value of its own.
        listed: those there are, each after its inputs as far as loops allow.
        made_of: by name of an op, the executed nodes that stand for it.
    """

    def __init__(self, graph: TensorFlowGraph, executed: ExecutedGraph) -> None:
        self._executed = executed
        origins = Origins(graph)
        body, prefix = graph.body_of(executed)
        found = [
            (graph.argument(each.name, body, prefix) if each.op == "_Arg" and body is not None else None)
            or origins.find(each.name, body, prefix)
            for each in executed.nodes
        ]
        self._names = _names(executed, found, body is not None)
        self._taps = {f"^{each.name}" for each in executed.nodes if each.op == _TAP}
        self._returning = {each.name for each in executed.nodes if each.op.endswith("NextIteration")}
        self._known_as: dict[int | str, str] = {
            key: self._names[each.name]
            for each, origin in zip(executed.nodes, found, strict=True)
            if origin is not None
            for key in (origin[0].name, id(origin[0]))
        }
        self._fused = Fused(executed, [None if origin is None else origin[0] for origin in found])
        self.nodes: list[Node | None] = []
        for each, origin in zip(executed.nodes, found, strict=True):
            without = each.op in _WITHOUT_VALUE or (origin is None and not each.dtypes)
            self.nodes.append(None if without else self._node(each, origin))
        self.listed = _in_order([node for node in self.nodes if node is not None])
        self.made_of = {
            origin[0].name: each
            for each, origin in zip(executed.nodes, found, strict=True)
            if origin is not None and each.op not in _WITHOUT_VALUE
        }

    def _node(self, each: ExecutedNode, origin: tuple[Any, Node, str] | None) -> Node:
        # What comes back to the head of a loop is no input of what is before it: a graph has no cycles then.
        returning = [name for name in each.inputs if name.rpartition(":")[0] in self._returning]
        inputs = tuple(
            self._tensor(name) for name in each.inputs if not name.startswith("^") and name not in returning
        )
        after = [name[1:] for name in each.inputs if name.startswith("^") and name not in self._taps]
        after += [name.rpartition(":")[0] for name in returning]
        control = tuple(self._names.get(name, name) for name in after)
        op_type = _plain_type(each.op)
        if origin is None:
            specs = tuple(TensorSpec(dtype, ()) for dtype in each.dtypes)
            return Node(
                self._names[each.name],
                op_type,
                inputs,
                control,
                specs,
                each.device,
                is_view=True,
                phase=_phase_by_name(each.name),
            )
        op, node, _ = origin
        if op_type == "_Arg":
            op_type = node.op_type
        outputs = node.outputs
        if tuple(spec.dtype for spec in outputs) != each.dtypes[: len(outputs)]:
            outputs = tuple(TensorSpec(dtype, ()) for dtype in each.dtypes)
        # Variables that it writes are recorded as if they were further outputs.
        written = [
            place for place, tensor in enumerate(op.inputs) if tensor.dtype.base_dtype.name == "resource"
        ]
        further = each.written
        return replace(
            self._fused.told(node, op, each),
            forward=self._forward_of(op, node),
            name=self._names[each.name],
            op_type=op_type,
            inputs=inputs,
            control_inputs=control,
            outputs=(*outputs, *(TensorSpec(dtype, ()) for dtype in further)),
            device=each.device,
            is_view=op_type in _PLUMBING,
            writes=(*(-1 for _ in outputs), *written[: len(further)]) if further else (),
        )

    def _forward_of(self, op: Any, node: Node) -> str | None:
        """What the op whose gradient it is a part of is known as; it may be in the body of another function."""
        if node.forward is None:
            return None
        forward = getattr(op, "_original_op", None) or _operation(op.graph, node.forward)
        return self._known_as.get(id(forward)) or self._known_as.get(node.forward) or node.forward

    def _tensor(self, name: str) -> str:
        node, _, slot = name.rpartition(":")
        return f"{self._names.get(node, node)}:{slot}"


def _names(
    executed: ExecutedGraph, found: Iterable[tuple[Any, Node, str] | None], is_function: bool
) -> dict[str, str]:
    """What executed nodes are called: as the op they are made of, the first of several; without numbers that vary."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for each, origin in zip(executed.nodes, found, strict=True):
        name = _BRANCHES.sub(r"/\1", each.name) if origin is None else origin[2]
        plain = _CALLS.sub("", name) if is_function else name
        name = name if plain in taken else plain
        if name in taken:
            name = each.name
        taken.add(name)
        names[each.name] = name
    return names


def _plain_type(op: str) -> str:
    """The type of an op without the library that computes it: `_MklMatMul` is a MatMul."""
    match = _MKL.match(op)
    if match is None:
        return op
    return f"_{match[1]}" if match[1].startswith("Fused") else match[1]


def _phase_by_name(name: str) -> str:
    return "backward" if name.startswith("gradients") or "/gradients" in name else "forward"


def _in_order(nodes: list[Node]) -> list[Node]:
    """Each node after those it takes values of; loops are entered where they come first."""
    by_name = {node.name: node for node in nodes}
    done: dict[str, None] = {}
    for first in nodes:
        waiting = [(first, iter(first.inputs))]
        begun = {first.name}
        while waiting:
            node, inputs = waiting[-1]
            for tensor in inputs:
                name = tensor.rpartition(":")[0]
                if name in by_name and name not in done and name not in begun:
                    begun.add(name)
                    waiting.append((by_name[name], iter(by_name[name].inputs)))
                    break
            else:
                done.setdefault(node.name)
                waiting.pop()
    return [by_name[name] for name in done]


def missing_reason(graph: TensorFlowGraph, name: str, known: Iterable[KnownGraph]) -> str:
    """Why an op of the graph was not seen in a run.

    Args:
        graph: what the user made.
        name: of a node in it.
        known: what the run executed.
    """
    executed: Mapping[str, ExecutedNode] = {}
    for each in known:
        executed = {**executed, **each.made_of}
    if name in executed:
        return "it was executed, but has no value that could be recorded"
    op = _operation(graph.tf_graph, name)
    if op is None:
        return ""
    # Whoever used it and was executed as something else has it inside.
    waiting, seen = [op], {op.name}
    while waiting:
        here = waiting.pop(0)
        for user in (user for output in here.outputs for user in output.consumers()):
            if user.name in seen:
                continue
            seen.add(user.name)
            if user.name not in executed:
                waiting.append(user)
                continue
            kind = executed[user.name].op
            if kind == "Const" and user.type != "Const":
                return f"it was folded into the constant {user.name!r}"
            if kind != user.type and is_fused(kind):
                return f"it was fused into {user.name!r} ({_plain_type(kind)})"
            return f"TensorFlow's optimiser removed it; {user.name!r} was computed without it"
    return "nothing that was fetched needs it, so it was pruned"
