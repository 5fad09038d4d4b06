"""What the graph of a run says by itself: what its nodes are, what they take, show and write, and where they belong."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from tensortap.analyze.graph_nodes import GraphNodes
from tensortap.analyze.training import forward_by_name, variable_behind
from tensortap.analyze.vocabulary import operation_of, vocabulary_of
from tensortap.analyze.vocabulary.canonical import Operation
from tensortap.phases import SOURCES, is_variable, phase_of
from tensortap.records import Circumstances, Node, TensorSpec, split_tensor_name

__all__ = ["GraphFacts"]


class GraphFacts:
    """The nodes of a run.

    Args:
        nodes: by name.

    Attributes:
        circumstances: what the engine knew of the run besides.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = nodes
        self.circumstances = Circumstances()
        self._variables: dict[str, str | None] = {}

    def node_of(self, tensor: str) -> Node | None:
        """The node that made a tensor, None if the graph does not have it."""
        return self.nodes.get(split_tensor_name(tensor)[0])

    def spec(self, tensor: str) -> TensorSpec | None:
        """Dtype and shape of a tensor as the graph says."""
        node, slot = self.node_of(tensor), split_tensor_name(tensor)[1] or 0
        return node.outputs[slot] if node is not None and slot < len(node.outputs) else None

    @functools.cached_property
    def op_types(self) -> dict[str, str]:
        """Op types of all nodes by name."""
        if isinstance(self.nodes, GraphNodes):
            return self.nodes.op_types()
        return {name: node.op_type for name, node in self.nodes.items()}

    def consumers(self, tensor: str) -> list[tuple[Node, int]]:
        """The nodes that take a tensor, each with the place it takes it at."""
        return [(self.nodes[name], place) for name, place in self._takers.get(tensor, ())]

    @functools.cached_property
    def _takers(self) -> dict[str, list[tuple[str, int]]]:
        takers: dict[str, list[tuple[str, int]]] = {}
        for name in self.nodes:
            inputs = (
                self.nodes.inputs(name) if isinstance(self.nodes, GraphNodes) else self.nodes[name].inputs
            )
            for place, taken in enumerate(inputs):
                takers.setdefault(taken, []).append((name, place))
        return takers

    # --- what nodes are ----------------------------------------------------------------------------

    def operation(self, node: Node) -> Operation:
        """What the operation of a node is."""
        return operation_of(node.op_type, self.circumstances.engine)

    def operation_named(self, op_type: str) -> Operation:
        """What an operation of this type is."""
        return operation_of(op_type, self.circumstances.engine)

    def is_view(self, node: Node) -> bool:
        """Whether the outputs of a node show elements of its first input."""
        return self.operation(node).is_view or (node.is_view and len(node.inputs) == 1)

    def writers_of(self, node: Node) -> tuple[str, ...]:
        """The nodes that have written to the memory of what a node is given, through other names."""
        if not node.control_inputs:
            return ()
        vocabulary = vocabulary_of(node.op_type, self.circumstances.engine)
        if vocabulary.control_inputs_write:
            return node.control_inputs
        return tuple(each for each in node.control_inputs if self._writes_into(each, node.inputs))

    def _writes_into(self, name: str, tensors: Sequence[str]) -> bool:
        """Whether a node writes into one of these: a variable that is read after an update of it, say."""
        writer = self.nodes.get(name)
        if writer is None or not writer.inputs or writer.inputs[0] not in tensors:
            return False
        return self.is_in_place(writer)

    def carried_by(self, node: Node) -> tuple[str, ...]:
        """What a node hands on that only carries values."""
        place = self.operation(node).place_of("pushed")
        return node.inputs[place : place + 1]

    def is_partial_view(self, node: Node) -> bool:
        """Whether they show only some of them, or may: so it is with views that no vocabulary has."""
        operation = self.operation(node)
        return operation.is_partial_view or not operation.is_view

    def is_in_place(self, node: Node) -> bool:
        """Whether the first output of a node was written into an input."""
        return self._place_written(node, 0) >= 0

    def forgets(self, node: Node) -> int:
        """The place of the input whose values a node overwrites without looking at them; -1 if there is none."""
        place = self._place_written(node, 0)
        if place < 0:
            return -1
        vocabulary = vocabulary_of(node.op_type, self.circumstances.engine)
        is_forgotten = self.operation(node).overwrites or vocabulary.fills_an_argument(node.attributes)
        return place if is_forgotten else -1

    def _place_written(self, node: Node, slot: int) -> int:
        if node.phase:
            return node.writes[slot] if slot < len(node.writes) else -1
        # A graph from before engines told: the name of the operation says it.
        operation = self.operation(node)
        return slot if operation.is_in_place or slot in operation.hidden_writes else -1

    def phase(self, name: str) -> str:
        """The phase of a node, empty if the graph does not have it."""
        if isinstance(self.nodes, GraphNodes):
            return self.nodes.phase(name)
        node = self.nodes.get(name)
        return "" if node is None else phase_of(node)

    def variable_of(self, tensor: str) -> str | None:
        """The variable whose value a tensor is; None if it is something else."""
        return variable_behind(self, tensor)

    def forward_name(self, name: str) -> str | None:
        """For a gradient, the name of the node it is the gradient of, if the run has it; made without either."""
        if isinstance(self.nodes, GraphNodes):
            forward = self.nodes.forward(name)
            if forward is not None:
                return forward if forward in self.nodes else None
        found = self.forward_of(self.nodes[name])
        return None if found is None else found.name

    def forward_of(self, node: Node) -> Node | None:
        """For a gradient, the node it is the gradient of, if the run has it."""
        if node.forward is not None or node.phase:
            return None if node.forward is None else self.nodes.get(node.forward)
        return forward_by_name(self, node.name)

    def named_last(self, last: str) -> list[str]:
        """The nodes whose names end in this, after their scope."""
        return self._by_last_part.get(last, [])

    @functools.cached_property
    def _by_last_part(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.op_types:
            found.setdefault(name.rpartition("/")[2], []).append(name)
        return found

    # --- what is written ---------------------------------------------------------------------------

    def written_variable(self, tensor: str) -> str | None:
        """The variable that an operation in place has changed by making this tensor; None if it did not."""
        before = self._written_tensor(tensor, was_written=False)
        walked: list[str] = []
        passed: set[str] = set()
        while before is not None and before not in self._variables and before not in passed:
            walked.append(before)
            passed.add(before)
            node_name = split_tensor_name(before)[0]
            if self.op_types.get(node_name, "") in SOURCES:
                self._variables[before] = node_name if is_variable(self.op_types[node_name]) else None
                break
            before = self._written_tensor(before, was_written=True)
        variable = None if before is None else self._variables.get(before)
        # Remembered for all of them: a parameter may be written to by thousands of operations, one after the other.
        self._variables.update(dict.fromkeys(walked, variable))
        return variable

    def _written_tensor(self, tensor: str, was_written: bool) -> str | None:
        """What an operation in place has written to by making a tensor; None if it is no such operation."""
        node_name, slot = split_tensor_name(tensor)
        # What costs little first: most tensors are not written in place, and a node takes a while to make.
        op_type = self.op_types.get(node_name, "")
        place = slot or 0
        if op_type in SOURCES:
            return None
        if op_type == "AccumulateGrad" or not (was_written or self._may_write(node_name, op_type)):
            return None
        node = self.nodes.get(node_name)
        if node is None:
            return None
        place = 0 if was_written and self.is_view(node) else self._place_written(node, place)
        return node.inputs[place] if 0 <= place < len(node.inputs) else None

    def _may_write(self, name: str, op_type: str) -> bool:
        if not isinstance(self.nodes, GraphNodes):
            return True
        told = self.nodes.writes(name)
        operation = operation_of(op_type, self.circumstances.engine)
        return operation.is_in_place or bool(operation.hidden_writes) if told is None else told
