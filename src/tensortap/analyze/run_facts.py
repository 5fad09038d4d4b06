"""One run as the analysis sees it: its nodes, and the health of its tensors in the order they were made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tensortap.analyze.graph_nodes import GraphNodes
from tensortap.analyze.health import Health
from tensortap.analyze.vocabulary import operation_of, vocabulary_of
from tensortap.analyze.vocabulary.canonical import Operation
from tensortap.phases import SOURCES, is_variable, parameter_of_gradient, phase_of
from tensortap.pill import NEVER_BAD
from tensortap.records import Circumstances, Frame, Node, RunInfo, TensorSpec, split_tensor_name

__all__ = ["RunFacts"]


class RunFacts:
    """What is known of one run.

    Made from a run directory by `facts_of_dump`, or directly from nodes and healths while the run is still alive.

    Args:
        info: number, step, time and rank.
        nodes: the executed nodes by name.
        healths: health of the recorded tensors, in the order they were made; or a function that works one out.
        times: microseconds since the epoch at which tensors were complete, as far as known.
        values: gives the value of a tensor if it was recorded, else None.
        value_times: microseconds since the epoch at which the value that `values` gives was recorded.
        places: gives the coordinates of the stored values of a sparse tensor if they were recorded, else None.
        hashes: gives the recorded hash of a tensor, None if there is none.
        source_lines: gives the text of a source line if the file is known, else None.
        is_muted: healthy tensors were left out on purpose, so that what is missing was good.
        name: of the run directory.
        notices: what is unusual about the run, in sentences.

    Attributes:
        goes_on: whether the program is known to have gone on after this run.
        circumstances: what the engine knew of the run besides its records.

    >>> import numpy as np
    >>> log = Node("log", "aten::log", inputs=("x:0",))
    >>> import numpy as np
    >>> facts = RunFacts(RunInfo(0, 7, 1), {"log": log}, {"log:0": Health.of_value(np.log(np.ones(2)))})
    >>> facts.info.global_step, facts.is_bad("log:0"), facts.health("x:0")
    (7, False, None)
    """

    def __init__(
        self,
        info: RunInfo,
        nodes: Mapping[str, Node],
        healths: Mapping[str, Health | Callable[[], Health | None]],
        *,
        times: Mapping[str, int] | None = None,
        values: Callable[[str], Any] = lambda tensor: None,
        value_times: Mapping[str, int] | None = None,
        places: Callable[[str], Any] = lambda tensor: None,
        hashes: Callable[[str], Any] = lambda tensor: None,
        source_lines: Callable[[Frame], str | None] = lambda frame: None,
        is_muted: bool = False,
        name: str = "",
        notices: Iterable[str] = (),
    ) -> None:
        self.info = info
        self.nodes = nodes
        self.value = values
        self.places = places
        self.hash = hashes
        self.source_line = source_lines
        self.is_muted = is_muted
        self.name = name
        self.goes_on = False
        self.circumstances = Circumstances()
        self.notices = list(notices)
        self.times = {} if times is None else times
        self._value_times = {} if value_times is None else value_times
        self._healths = dict(healths)
        known = self._healths if times is None else times
        self.order = {tensor: place for place, tensor in enumerate(known)}
        self._consumers: dict[str, list[tuple[str, int]]] | None = None
        self._op_types: dict[str, str] | None = None
        self._behind: dict[str, tuple[Health | None, str | None, bool]] = {}
        self._variables: dict[str, str | None] = {}
        self._unread: list[str] | None = None

    @property
    def tensors(self) -> list[str]:
        """Names of the recorded tensors in the order they were made."""
        return list(self._healths)

    def health(self, tensor: str) -> Health | None:
        """Health of a tensor, None if it was not recorded."""
        found = self._healths.get(tensor)
        if callable(found):
            found = found()
            if found is None:
                del self._healths[tensor]
            else:
                self._healths[tensor] = found
        return found

    def health_behind(self, tensor: str) -> Health | None:
        """Health of a tensor, or of what a view that was not recorded shows."""
        return self.behind(tensor)[0]

    def behind(self, tensor: str) -> tuple[Health | None, str | None]:
        """The same, and the name of the whole if a view shows only part of it."""
        # What was walked through is remembered: many views may show the same memory, and views views.
        walked: list[tuple[str, bool]] = []
        passed: set[str] = set()
        while tensor not in self._behind:
            found = self.health(tensor)
            node = self.node_of(tensor)
            if found is not None or node is None or not node.inputs or tensor in passed:
                self._behind[tensor] = (found, tensor if found is not None else None, False)
                break
            if not self.is_view(node):
                self._behind[tensor] = (None, None, False)
                break
            walked.append((tensor, self.is_partial_view(node)))
            passed.add(tensor)
            tensor = node.inputs[0]
        health, whole, part = self._behind[tensor]
        for view, is_partial in reversed(walked):
            part = part or is_partial
            self._behind[view] = (health, whole, part)
        return health, whole if part else None

    def health_given(self, tensor: str, node: Node) -> Health | None:
        """Health of a tensor as a node found it, after what had been written to its memory through other names."""
        found = self.health_behind(tensor)
        if not node.control_inputs:
            return found
        kept = self.value_given(tensor, node)
        if kept is not None:
            return kept
        for writer in node.control_inputs:
            health = self.health(f"{writer}:0")
            if found is not None and health is not None:
                found = found.with_part(health)
        return found

    def value_given(self, tensor: str, node: Node) -> Health | None:
        """The same, exactly: None unless the value was kept when the node had been executed."""
        written = max((self.times.get(f"{writer}:0", 0) for writer in node.control_inputs), default=0)
        if self._value_times.get(tensor, 0) <= written:
            return None
        value = self.value(tensor)
        return None if value is None else Health.of_value(value)

    def is_bad(self, tensor: str) -> bool:
        """Whether a tensor is known to hold a NaN or an infinity."""
        found = self.health(tensor)
        return found is not None and found.is_bad

    @property
    def unread(self) -> list[str]:
        """Names of the tensors that were recorded without being looked at, as far as they could be bad at all."""
        if self._unread is None:
            known = ((tensor, self.health(tensor)) for tensor in self.tensors)
            self._unread = [
                tensor
                for tensor, health in known
                if health is not None and not health.was_read and health.dtype_number not in NEVER_BAD
            ]
        return self._unread

    def node_of(self, tensor: str) -> Node | None:
        """The node that made a tensor, None if the graph does not have it."""
        return self.nodes.get(split_tensor_name(tensor)[0])

    def spec(self, tensor: str) -> TensorSpec | None:
        """Dtype and shape of a tensor as the graph says."""
        node, slot = self.node_of(tensor), split_tensor_name(tensor)[1] or 0
        return node.outputs[slot] if node is not None and slot < len(node.outputs) else None

    @property
    def op_types(self) -> dict[str, str]:
        """Op types of all nodes by name."""
        if self._op_types is None:
            if isinstance(self.nodes, GraphNodes):
                self._op_types = self.nodes.op_types()
            else:
                self._op_types = {name: node.op_type for name, node in self.nodes.items()}
        return self._op_types

    def consumers(self, tensor: str) -> list[tuple[Node, int]]:
        """The nodes that take a tensor, each with the place it takes it at."""
        if self._consumers is None:
            consumers: dict[str, list[tuple[str, int]]] = {}
            for name in self.nodes:
                inputs = (
                    self.nodes.inputs(name) if isinstance(self.nodes, GraphNodes) else self.nodes[name].inputs
                )
                for place, taken in enumerate(inputs):
                    consumers.setdefault(taken, []).append((name, place))
            self._consumers = consumers
        return [(self.nodes[name], place) for name, place in self._consumers.get(tensor, ())]

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

    # --- what nodes are ----------------------------------------------------------------------------

    def operation(self, node: Node) -> Operation:
        """What the operation of a node is."""
        return operation_of(node.op_type, self.circumstances.engine)

    def is_view(self, node: Node) -> bool:
        """Whether the outputs of a node show elements of its first input."""
        return self.operation(node).is_view or (node.is_view and bool(node.inputs))

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

    @functools.cached_property
    def gradients(self) -> dict[str, str]:
        """The nodes of complete gradients, by the parameter they belong to; of several, the first."""
        found: dict[str, str] = {}
        for name, op_type in self.op_types.items():
            if op_type == "AccumulateGrad":
                found.setdefault(parameter_of_gradient(self.nodes[name]), name)
        return found

    def __iter__(self) -> Iterator[tuple[str, Health]]:
        for tensor in self.tensors:
            health = self.health(tensor)
            if health is not None:
                yield tensor, health
