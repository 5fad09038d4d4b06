"""The graph of one device as the queries of a dump see it, without the nodes of the debugger.

TensorFlow stores the graph it executed, in which the debugger has put a `__copy_` node behind every watched
tensor and `__dbg_` nodes behind those (E9). Readers want the graph the user wrote, so both kinds are taken
out and their edges joined again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tensortap.errors import UsageError
from tensortap.records import Frame, split_tensor_name

__all__ = ["DebugGraph", "node_of"]

# Ops of TensorFlow 1 whose output is a reference to a variable, so that a consumer may change the variable.
_REFERENCE_OPS = frozenset(
    [
        "Variable",
        "VariableV2",
        "TemporaryVariable",
        "Assign",
        "AssignAdd",
        "AssignSub",
        "ScatterUpdate",
        "ScatterAdd",
        "ScatterSub",
        "ScatterMul",
        "ScatterDiv",
        "ScatterMin",
        "ScatterMax",
        "ScatterNdUpdate",
        "ScatterNdAdd",
        "ScatterNdSub",
        "CountUpTo",
        "RefEnter",
        "RefIdentity",
        "RefSwitch",
        "RefMerge",
        "RefExit",
        "RefNextIteration",
        "RefSelect",
        "StridedSliceAssign",
    ]
)


def node_of(element: str) -> str:
    """The node of a tensor or node name; a caret of a control edge is not expected here."""
    return split_tensor_name(element)[0]


class DebugGraph:
    """Names, edges and attributes of the nodes of one device.

    Attributes:
        message: the GraphDef as stored, names normalised.
        inputs: data inputs of every node, `node` or `node:slot`.
        control_inputs: names of the nodes every node waits for.
        recipients: nodes that take an output of a node.
        control_recipients: nodes that wait for a node.
        reversed_refs: nodes that may change a variable they take by reference, by variable.
    """

    def __init__(self, message: Any, device: str) -> None:
        self.message = _normalised(message)
        self.device = device
        self.op_types: dict[str, str] = {}
        self.devices: dict[str, str] = {}
        self.attributes: dict[str, Any] = {}
        self.inputs: dict[str, list[str]] = {}
        self.control_inputs: dict[str, list[str]] = {}
        self.recipients: dict[str, list[str]] = {}
        self.control_recipients: dict[str, list[str]] = {}
        self.reversed_refs: dict[str, list[str]] = {}
        copied = self._copied_tensors()
        copies_sent = {
            node.name
            for node in message.node
            if node.op in ("_Send", "_Retval") and any(_is_copy(name) for name in node.input)
        }
        for node in message.node:
            if not _is_debugger_node(node.name):
                self._add(node, copied)
        self._join(copies_sent)
        self.merges = frozenset(name for name, op in self.op_types.items() if op == "Merge")

    def _copied_tensors(self) -> dict[str, str]:
        return {
            node.name: next((name for name in node.input if not name.startswith("^")), "")
            for node in self.message.node
            if _is_copy(node.name)
        }

    def _add(self, node: Any, copied: dict[str, str]) -> None:
        if node.name in self.inputs:
            raise UsageError(f"Duplicate node name on device {self.device}: {node.name!r}.")
        self.op_types[node.name] = node.op
        self.devices[node.name] = node.device or self.device
        self.attributes[node.name] = node.attr
        names = list(node.input)
        if copied:
            names = [copied.get(node_of(name), name) for name in names]
        self.inputs[node.name] = [name for name in names if name[:1] != "^"]
        self.control_inputs[node.name] = [
            name[1:] for name in names if name[:1] == "^" and not name.startswith("^__dbg_")
        ]
        self.recipients[node.name] = []
        self.control_recipients[node.name] = []

    def _join(self, copies_sent: set[str]) -> None:
        for node, names in self.inputs.items():
            for name in map(node_of, names):
                self.recipients.setdefault(name, []).append(node)
                if self.op_types.get(name) in _REFERENCE_OPS:
                    self.reversed_refs.setdefault(name, []).append(node)
        for node, names in self.control_inputs.items():
            for name in names:
                if name not in copies_sent:
                    self.control_recipients.setdefault(name, []).append(node)

    def without_debugger_nodes(self) -> Any:
        """A GraphDef with the nodes the user's graph has."""
        graph = type(self.message)()
        for node in self.message.node:
            if not _is_debugger_node(node.name):
                added = graph.node.add()
                added.CopyFrom(node)
                del added.input[:]
                added.input.extend(self.inputs[node.name])
                added.input.extend(f"^{name}" for name in self.control_inputs[node.name])
        return graph

    def traceback(self, node: str) -> list[Frame] | None:
        """The source lines stored with a node, outermost first; None if there are none."""
        attributes = self.attributes.get(node)
        if attributes is None or "_source" not in attributes:
            return None
        lines = (line.decode("utf-8", "replace") for line in attributes["_source"].list.s)
        return [frame for frame in map(Frame.of_text, lines) if frame is not None]

    def edges(self, *, control: bool, reversed_refs: bool) -> list[dict[str, list[str]]]:
        """The kinds of incoming edges a search should follow."""
        kinds = [self.inputs]
        if control:
            kinds.append(self.control_inputs)
        if reversed_refs:
            kinds.append(self.reversed_refs)
        return kinds


def _is_copy(name: str) -> bool:
    return name.startswith("__copy_")


def _is_debugger_node(name: str) -> bool:
    return name.startswith(("__copy_", "__dbg_"))


def _normalised(message: Any) -> Any:
    # Most graphs have no doubled slash anywhere; one look at the bytes is cheaper than one at every name.
    if b"//" in message.SerializeToString():
        for node in message.node:
            node.name = re.sub("/+", "/", node.name)
            node.input[:] = [re.sub("/+", "/", name) for name in node.input]
    return message


def trace_inputs(
    start: str, edges: Iterable[dict[str, list[str]]], stop_at: frozenset[str], goal: str | None = None
) -> tuple[list[str], list[str] | None]:
    """Depth-first search backwards through a graph.

    Args:
        start: the node whose inputs are wanted.
        edges: maps from a node to what it takes.
        stop_at: nodes whose own inputs are not followed.
        goal: a node at which to stop.

    Returns:
        Every element met, in the order it was met, and the path from `goal` to `start` if there is one.
    """
    kinds = list(edges)
    met: list[str] = []
    start = node_of(start)
    if start == goal:
        return met, [start]
    if start in stop_at:
        return met, None
    visited = {start}

    def incoming(node: str) -> list[str]:
        return [name for kind in kinds for name in kind.get(node, ())]

    # An explicit stack: a training step is thousands of nodes deep, beyond Python's recursion limit.
    path = [start]
    pending = [iter(incoming(start))]
    while pending:
        element = next(pending[-1], None)
        if element is None:
            pending.pop()
            path.pop()
            continue
        node = node_of(element)
        if node in visited:
            continue
        met.append(element)
        if node == goal:
            return met, [node, *reversed(path)]
        if node not in stop_at:
            visited.add(node)
            path.append(node)
            pending.append(iter(incoming(node)))
    return met, None
