"""What is known of every tensor of a run: good, bad, or bad on purpose; and of what operations were given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from tensortap.analyze.case import group_size
from tensortap.analyze.facts import RunFacts, phase_of
from tensortap.analyze.findings import InputHealth
from tensortap.analyze.health import Health
from tensortap.analyze.nearest import only_carries
from tensortap.analyze.vocabulary.canonical import PUSHES, Operation
from tensortap.phases import SOURCES, is_fed, is_variable
from tensortap.records import Node, split_tensor_name

__all__ = ["BAD", "GOOD", "INTENDED", "PARTLY", "UNKNOWN", "Condition", "Verdicts"]

Condition = Callable[[Health], bool]
"""A user's idea of bad: asked about the health of every tensor."""

GOOD, BAD, INTENDED, PARTLY, UNKNOWN = "good", "bad", "intended", "partly", "unknown"

_FLOATS = re.compile(r"float|complex|unknown|bf16")


class Verdicts:
    """The tensors of a run with a verdict each.

    Args:
        facts: the run.
        exclude: nodes in whose name it is found are never bad.
        condition: replaces "holds NaN or infinities".

    Attributes:
        verdicts: of all recorded tensors.
        bad: those that are bad, in the order of execution.
        intended_count: how many hold infinities that were put there on purpose.
    """

    def __init__(self, facts: RunFacts, exclude: re.Pattern[str] | None, condition: Condition | None) -> None:
        self.facts = facts
        self._condition = condition
        self.verdicts: dict[str, str] = {}
        self.bad: list[str] = []
        self.intended_count = 0
        self._memories: dict[str, str | None] = {}
        self._is_judged = False
        self._seen_through: dict[str, str] = {}
        for tensor in facts.tensors:
            self.verdicts[tensor] = verdict = self._judge(tensor, exclude)
            if verdict == BAD:
                self.bad.append(tensor)
            elif verdict == INTENDED:
                self.intended_count += 1
        self._is_judged = True
        if condition is None:
            self._accuse_memory_never_written()

    def _accuse_memory_never_written(self) -> None:
        """What `empty` returns holds anything, and is bad only if an operation takes it before it was written."""
        found: dict[str, None] = {}
        for tensor in self.bad:
            node, slot = self.facts.node_of(tensor), split_tensor_name(tensor)[1] or 0
            if node is None or self.facts.is_in_place(node) or self.facts.is_view(node):
                continue
            for place in self.relevant(node, slot):
                memory = self._memory_behind(node.inputs[place])
                if memory is not None and self._holds_garbage(memory, node, node.inputs[place]):
                    found[memory] = None
        for memory in found:
            self.verdicts[memory] = BAD
        if found:
            order = self.facts.order
            self.bad = sorted([*found, *self.bad], key=lambda tensor: order.get(tensor, 0))

    def _memory_behind(self, tensor: str) -> str | None:
        """The output of `empty` and the like that a tensor is, or shows."""
        walked: list[str] = []
        while tensor not in self._memories:
            self._memories[tensor] = None  # unless it turns out to be one; also ends a walk in a circle
            node = self.facts.node_of(tensor)
            if node is not None and self.facts.operation(node).is_unwritten:
                self._memories[tensor] = tensor
            elif node is not None and self.facts.is_view(node) and node.inputs:
                walked.append(tensor)
                tensor = node.inputs[0]
        found = self._memories[tensor]
        self._memories.update(dict.fromkeys(walked, found))
        return found

    def _holds_garbage(self, memory: str, node: Node, given: str) -> bool:
        found = self.facts.health(memory)
        if found is None or not found.is_bad:
            return False
        if not self._writers(node):
            return True
        # Part of it has been written. What is left is known if the value was kept for this node.
        health = self.facts.value_given(given, node)
        return health is not None and health.is_bad

    def _judge(self, tensor: str, exclude: re.Pattern[str] | None) -> str:
        health = self.facts.health(tensor)
        if health is None or not health.was_read:
            return UNKNOWN
        is_bad = health.is_bad if self._condition is None else self._condition(health)
        if not is_bad:
            return GOOD
        node = self.facts.node_of(tensor)
        if node is not None and self.facts.operation(node).is_garbage:
            return GOOD
        if exclude is not None and exclude.search(split_tensor_name(tensor)[0]):
            return INTENDED
        if (
            self._condition is None
            and node is not None
            and not health.nan
            and self._is_intended(node, health)
        ):
            return INTENDED
        return BAD

    def _is_intended(self, node: Node, health: Health) -> bool:
        """Whether infinities, and no NaN, were put into a tensor on purpose or only carried on."""
        operation = self.facts.operation(node)
        if node.op_type in SOURCES:
            # A mask holds zeros and −inf, or is a constant; weights and data have other numbers beside them.
            if node.name in self.facts.gradients or self._is_trained(node):
                return False
            is_mask = not health.pos_inf and not health.negative and not health.positive
            # Nothing but infinities: the bound of what is not bounded, or where a search for the least begins.
            is_bound = health.infinities == health.elements
            # What came from outside may be bad by mistake; a constant that the graph itself holds was written so.
            limit = 1 if node.op_type == "Const" and "value" not in node.attributes else health.elements
            return is_mask or (is_bound and not is_fed(node.op_type) and health.elements <= limit)
        if phase_of(node) == "optimizer" and self.facts.is_in_place(node):
            return False
        if phase_of(node) == "backward":
            return self.facts.is_view(node) and bool(node.inputs) and self.input_status(node, 0) == INTENDED
        inherited = [self.input_status(node, place) for place in range(len(node.inputs))]
        if BAD in inherited or PARTLY in inherited:
            return False
        if INTENDED not in inherited:
            if operation.makes_masks:
                return _makes_infinity(node, operation)
            return not self.facts.is_in_place(node) and _has_infinite_constant(node)
        if operation.makes_masks or operation.casts:
            return True
        given = [self.facts.health_behind(each) for each in node.inputs]
        most = max((each.elements for each in given if each is not None), default=0)
        if health.elements <= 1 < most:
            return False  # a sum or a maximum over masked elements is a result
        had_positive = any(each is not None and each.pos_inf for each in given)
        return not health.pos_inf or had_positive or operation.changes_sign

    def _is_trained(self, node: Node) -> bool:
        return is_variable(node.op_type) and self.facts.variable_of(node.tensor(0)) in self.facts.gradients

    # --- inputs ------------------------------------------------------------------------------------

    def relevant(self, node: Node, slot: int) -> list[int]:
        """Places of the inputs that the values of an output depend on."""
        operation = self.facts.operation(node)
        if operation.is_value_free:
            return []
        if node.op_type in SOURCES:  # what it reads is from before the run, unless it was written in it
            written = bool(node.inputs) and self._was_written_badly(node.inputs[0], node)
            return [0] if written else []
        if operation.name in PUSHES:
            return [operation.place_of("pushed")]
        places = list(range(len(node.inputs)))
        count = len(node.outputs)
        if operation.is_over_lists and count > 1:
            # Lists of tensors one after the other, worked on in parallel; what is left over is for all of them.
            group = group_size(node, operation)
            lists = len(places) // group * group
            places = [each for each in places if each >= lists or each % group == slot % group]
        forgotten = self.facts.forgets(node)
        if forgotten < 0:
            return places
        return places[1:] if operation.is_over_lists else [each for each in places if each != forgotten]

    def input_status(self, node: Node, place: int) -> str:
        """What a node was given at one place."""
        name = node.inputs[place]
        status = self._status(name)
        if status == BAD and not only_carries(self.facts, node) and self.facts.was_good_before(name, node):
            return GOOD  # in a loop: it came bad only when it had gone around
        if status == UNKNOWN and name not in self.verdicts:
            return BAD if self._was_written_badly(name, node) else self._status_of_nearest(name, node)
        written = self._writers(node)
        if written:
            # Its memory was written to through another name since it was recorded.
            writers = [self.verdicts.get(each, GOOD) for each in written]
            if BAD in writers and self._is_fresh_memory(name):
                return BAD
            if status == BAD:
                return PARTLY
        return status

    def _was_written_badly(self, variable: str, node: Node) -> bool:
        """Whether a variable that is not recorded itself got bad values in this run, before a node took it."""
        return any(
            self.verdicts.get(f"{name}:0") == BAD and variable in self.facts.nodes[name].inputs[:1]
            for name in self.facts.writers_of(node)
            if name in self.facts.nodes
        )

    def _status_of_nearest(self, tensor: str, node: Node) -> str:
        """What is known of a tensor that was not recorded, from what it was made of."""
        if not self._is_judged:
            return UNKNOWN
        nearest = self.facts.nearest(tensor)
        found = [each for each in nearest.tensors if self.verdicts.get(each) == BAD]
        if any(not self.facts.was_good_before(each, node) for each in found):
            carried = self.facts.health_carried(
                tensor, self.facts.bad_moment(node), self.facts.outputs_of(node)
            )
            return BAD if carried is not None and carried.is_bad else PARTLY
        return GOOD if nearest.is_carried else UNKNOWN

    def _status(self, tensor: str) -> str:
        """What is known of a tensor, recorded or seen through views."""
        views: list[tuple[str, Node]] = []
        passed: set[str] = set()
        status: str | None = None
        while status is None:
            node = self.facts.node_of(tensor)
            status = self._seen_through.get(tensor) or self._status_without_inputs(tensor, node)
            if status is None and node is not None:
                if tensor in passed or not (self._is_judged or len(views) < 1000):
                    status = self._unrecorded
                views.append((tensor, node))
                passed.add(tensor)
                tensor = node.inputs[0]
        for view, node in reversed(views):
            if BAD in [self.verdicts.get(each, GOOD) for each in self._writers(node)]:
                status = BAD
            elif status == BAD and self.facts.is_partial_view(node):
                status = PARTLY
            if self._is_judged:
                # Verdicts change no more, so that no view needs to be looked through twice.
                self._seen_through[view] = status
        return status

    @property
    def _unrecorded(self) -> str:
        return GOOD if self.facts.is_muted else UNKNOWN

    def _status_without_inputs(self, tensor: str, node: Node | None) -> str | None:
        """The same, as far as it can be told without looking at the inputs; None for a view."""
        known = self.verdicts.get(tensor)
        if known is not None:
            return known
        if node is None:
            return self._unrecorded
        spec = self.facts.spec(tensor)
        if spec is not None and not _FLOATS.search(spec.dtype):
            return GOOD
        if self.facts.operation(node).is_garbage:
            return GOOD
        return None if self.facts.is_view(node) and node.inputs else self._unrecorded

    def _is_fresh_memory(self, tensor: str) -> bool:
        node = self.facts.node_of(tensor)
        return node is None or self.verdicts.get(tensor) != BAD

    def inputs_of(self, node: Node, slot: int) -> tuple[InputHealth, ...]:
        """What a node was given, for the report."""
        named: dict[str, InputHealth] = {}
        for place in self.relevant(node, slot):
            tensor = node.inputs[place]
            if tensor not in named:
                _, whole = self.facts.behind(tensor)
                health = self.facts.health_given(tensor, node)
                status = self.input_status(node, place)
                read = self.facts.reads.get(self.facts.variable_of(tensor) or "")
                if status == UNKNOWN and health is None and read is not None:
                    # The handle of a variable has no value; what the run has read of it is what is written to.
                    named[tensor] = InputHealth(read, self.facts.health(read), self._status(read), None)
                else:
                    named[tensor] = InputHealth(tensor, health, status, whole)
        return tuple(named.values())

    def _writers(self, node: Node) -> list[str]:
        return [f"{each}:0" for each in self.facts.writers_of(node)]


def _makes_infinity(node: Node, operation: Operation) -> bool:
    """Whether one of the constants a node was given is infinite; True if they are not known."""
    constants = [key for key in operation.numbers.get("fill", ()) if key in node.attributes]
    return _has_infinite_constant(node) or any(isinstance(node.attributes[key], str) for key in constants)


def _has_infinite_constant(node: Node) -> bool:
    return any(isinstance(each, float) and math.isinf(each) for each in node.attributes.values())
