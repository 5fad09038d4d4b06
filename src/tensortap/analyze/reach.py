"""Which bad tensors were made of good ones, what they were used for, and whether that matters."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable

from tensortap.analyze.case import VARIES
from tensortap.analyze.collectives import collective_behind
from tensortap.analyze.facts import RunFacts
from tensortap.analyze.nearest import only_carries
from tensortap.analyze.unwritten import unwritten_behind
from tensortap.analyze.verdicts import BAD, GOOD, PARTLY, UNKNOWN, Condition, Verdicts
from tensortap.analyze.vocabulary import operation_of
from tensortap.analyze.vocabulary.canonical import CONSTANTS, LEAVES, UNSCALES, Operation
from tensortap.phases import SOURCES
from tensortap.records import Node, split_tensor_name

__all__ = ["Judged"]

_ANCESTORS = 2_000
"""Nodes that are looked at to find out what something was made of."""

_AGAIN = "recompute/"

LEFT = "left"
"""A use: the value left the program's tensors as a number."""


class Judged(Verdicts):
    """A judged run, and what became of its bad values.

    Attributes:
        was_skipped: only gradients were bad, and something has kept them from the parameters.
        tested: bad values that the program itself has tested, and left out.
    """

    def __init__(self, facts: RunFacts, exclude: re.Pattern[str] | None, condition: Condition | None) -> None:
        super().__init__(facts, exclude, condition)
        self.was_skipped = False
        self.tested: list[str] = []
        self._left: list[str] = []  # bad values that left as numbers, and were not used otherwise
        self._gone = frozenset(facts.circumstances.gone)
        self._made_of: dict[str, list[str]] = {}
        self._readers: dict[str, list[tuple[Node, int]]] | None = None
        self._made_into: dict[str, list[str]] = {}
        self._found_behind: dict[str, list[str]] = {}
        self._view_uses: dict[str, set[str]] = {}

    # --- producers and what becomes of what they made ----------------------------------------------

    def producers(self) -> list[str]:
        """The bad tensors none of whose inputs is bad, in the order of execution; one per node."""
        found: dict[str, str] = {}
        for tensor in self.bad:
            node, slot = self.facts.node_of(tensor), split_tensor_name(tensor)[1] or 0
            name = split_tensor_name(tensor)[0]
            if name in found:
                continue
            statuses = [] if node is None else [self.input_status(node, p) for p in self.relevant(node, slot)]
            # Given part of a bad tensor, most likely the bad part came along.
            if BAD not in statuses and PARTLY not in statuses:
                found[name] = tensor
        return list(found.values())

    def _bad_inputs(self, tensor: str) -> list[str]:
        """The recorded bad tensors that a bad tensor was made of, seen through views."""
        known = self._made_of.get(tensor)
        if known is None:
            known = self._made_of[tensor] = self._find_bad_inputs(tensor)
        return known

    def _find_bad_inputs(self, tensor: str) -> list[str]:
        node, slot = self.facts.node_of(tensor), split_tensor_name(tensor)[1] or 0
        if node is None:
            return []
        found = []
        for place in self.relevant(node, slot):
            if self.input_status(node, place) in (BAD, PARTLY):
                given = node.inputs[place]
                behind = self._recorded_behind(given) or self.facts.nearest(given).tensors
                found += [each for each in behind if self.verdicts.get(each) == BAD]
        found += [each for each in self._writers(node) if self.verdicts.get(each) == BAD]
        return found

    def _recorded_behind(self, tensor: str) -> list[str]:
        walked: dict[str, None] = {}
        while tensor not in self._found_behind:
            node = self.facts.node_of(tensor)
            found: list[str] | None = None
            if tensor in self.verdicts:
                found = [tensor] if self.verdicts[tensor] == BAD else []
            elif node is None or not node.inputs or tensor in walked:
                found = []
            else:
                found = [each for each in self._writers(node) if self.verdicts.get(each) == BAD] or None
            if found is not None or node is None:
                self._found_behind[tensor] = found or []
                break
            walked[tensor] = None
            tensor = node.inputs[0]
        self._found_behind.update(dict.fromkeys(walked, self._found_behind[tensor]))
        return self._found_behind[tensor]

    def reaching(self) -> set[str]:
        """The bad tensors from which a bad value went on to something that matters."""
        pending = [tensor for tensor in self.bad if self._matters(tensor)]
        pending += self._came_back(pending)
        rehearsed = self._rehearsed(pending)
        pending = [tensor for tensor in pending if tensor not in rehearsed]
        self.was_skipped = bool(pending) and self._was_skipped(pending)
        reaching = set(pending)
        while pending:
            for tensor in self._bad_inputs(pending.pop()):
                if tensor not in reaching:
                    reaching.add(tensor)
                    pending.append(tensor)
        return reaching

    def _rehearsed(self, mattering: list[str]) -> set[str]:
        """What comes of memory that nobody wrote, if it came near no gradient, parameter or number of the program's.

        Programs call a model once like that to learn the shapes of what it makes; pipelines do it with every stage, and
        backwards, too.
        """
        found: set[str] = set()
        left = set(self._left)
        for tensor in mattering:
            if tensor in found or not self._went_on_after(tensor):
                continue
            maker = self.maker_of(tensor)
            node = self.facts.node_of(maker)
            if node is None or unwritten_behind(self.facts, node) is None:
                continue
            came_of = {maker, *self.spread(maker)}
            if left.isdisjoint(came_of) and not any(
                self._is_gradient(each) or self.facts.written_variable(each) is not None for each in came_of
            ):
                found |= came_of
        return found

    def _came_back(self, mattering: list[str]) -> list[str]:
        """Bad values that left as numbers before a bad value was made with a number: a learning rate, most likely."""
        nodes = [(self.facts.order[each], self.facts.node_of(each)) for each in mattering]
        places = [place for place, node in nodes if node is not None and self._has_bad_number(node)]
        last = max(places, default=-1)
        return [each for each in self._left if each not in mattering and self.facts.order[each] < last]

    @staticmethod
    def _has_bad_number(node: Node) -> bool:
        return any(map(_is_no_number, node.attributes.values()))

    def _matters(self, tensor: str) -> bool:
        node, slot = self.facts.node_of(tensor), split_tensor_name(tensor)[1] or 0
        if node is None or tensor in self.facts.gradient_tensors:
            return True
        if self.facts.written_variable(tensor) is not None or self.is_loss(tensor):
            return True
        uses = self._uses(tensor)
        if UNKNOWN in uses or self._spoils_state(node):
            return True
        if LEFT in uses:
            # An infinity that is only printed does no harm, nor does what a training step was not made of.
            health = self.facts.health(tensor)
            self._left.append(tensor)
            return health is not None and bool(health.nan) and not self._trains
        if uses:
            return False
        health = self.facts.health(tensor)
        is_plain = health is not None and not health.nan
        if is_plain and node.op_type in SOURCES and not self.facts.consumers(tensor):
            return False  # an infinity that came so, and that nothing was made of: the best loss so far, say
        if tensor in self._gone and (is_plain or self._has_bad_number(node)):
            return False  # nobody has it any more; a NaN that was not asked for may have left through NumPy
        if is_plain and self.facts.operation(node).name == "log" and self._is_made_of_constants(node):
            return False  # a mask for a later run: the logarithm of ones and zeros
        if self._is_looked_at(tensor) and self._went_on_after(tensor):
            self.tested.append(tensor)
            return False
        # Statistics that an operation returns beside its result, and nobody used.
        return slot == 0 or self.verdicts.get(node.tensor(0)) == BAD

    def _is_made_of_constants(self, node: Node) -> bool:
        """Whether the program wrote down all numbers that something was made of."""
        pending, seen = [node], {node.name}
        while pending and len(seen) < _ANCESTORS:
            each = pending.pop()
            if not each.inputs and self.facts.operation(each).name not in CONSTANTS:
                return False
            for tensor in each.inputs:
                giver = self.facts.node_of(tensor)
                if giver is None:
                    return False
                if giver.name not in seen:
                    seen.add(giver.name)
                    pending.append(giver)
        return not pending

    def _spoils_state(self, node: Node) -> bool:
        """Whether a node makes what takes the place of good state: a second moment that overflows stays infinite."""
        before = node.attributes.get("updates")
        return isinstance(before, str) and self.verdicts.get(before, GOOD) == GOOD

    def is_loss(self, tensor: str) -> bool:
        """Whether the backward pass began here."""
        health = self.facts.health(tensor)
        return health is not None and health.elements == 1 and tensor in self._losses

    @functools.cached_property
    def _losses(self) -> frozenset[str]:
        return frozenset(self.facts.losses)

    @functools.cached_property
    def _trains(self) -> bool:
        """Whether gradients were worked out in this run."""
        return bool(self.facts.gradients)

    def _is_looked_at(self, tensor: str) -> bool:
        """Whether the program asked if a value is finite."""
        return any(self.facts.operation(node).checks for node, _ in self.facts.consumers(tensor))

    def maker_of(self, tensor: str) -> str:
        """The first of the bad tensors that a bad tensor comes of."""
        seen = {tensor}
        pending = [tensor]
        found = [tensor]
        while pending:
            inputs = [each for each in self._bad_inputs(pending.pop()) if each not in seen]
            seen.update(inputs)
            pending += inputs
            found += inputs
        return min(found, key=lambda each: self.facts.order.get(each, 0))

    def _went_on_after(self, tensor: str) -> bool:
        """Whether training went on: what a program tests, and ends at, was no matter of course."""
        return self.facts.goes_on or self.facts.order.get(tensor, 0) < self._last_update

    @functools.cached_property
    def _last_update(self) -> int:
        order = self.facts.order
        phase = self.facts.phase
        if any(tensor in order for tensor in self.facts.gradients.values() if self.facts.updates):
            return len(order)  # updates that show nothing, of a graph that was executed as a whole
        updates = (order[each] for each in order if phase(split_tensor_name(each)[0]) == "optimizer")
        return max(updates, default=-1)

    def _uses(self, tensor: str) -> set[str]:
        """What came of every use of a tensor's values, seen through views that were not recorded."""
        uses, views = self._direct_uses(tensor)
        for view in views:
            uses |= self._uses_of_view(view)
        return uses

    def _uses_of_view(self, start: str) -> set[str]:
        """What came of every use of a view that was not recorded, and of the views of it."""
        if start in self._view_uses:
            return self._view_uses[start]
        # All views that can be reached from here are settled together, each edge looked at once: there may be cycles.
        uses: dict[str, set[str]] = {}
        viewed: dict[str, list[str]] = {}
        pending = [start]
        while pending:
            view = pending.pop()
            if view in uses:
                continue
            if view in self._view_uses:
                uses[view] = set(self._view_uses[view])
                continue
            uses[view], further = self._direct_uses(view)
            for each in further:
                viewed.setdefault(each, []).append(view)
            pending += further
        for status in (UNKNOWN, LEFT, BAD, GOOD):
            pending = [view for view, found in uses.items() if status in found]
            while pending:
                for view in viewed.get(pending.pop(), ()):
                    if status not in uses[view]:
                        uses[view].add(status)
                        pending.append(view)
        self._view_uses.update(uses)
        return uses[start]

    def _direct_uses(self, tensor: str) -> tuple[set[str], list[str]]:
        """What came of the uses of a tensor's values, and the views of it that were not recorded."""
        uses: set[str] = set()
        views: dict[str, None] = {}
        for node, place in [*self.facts.consumers(tensor), *self._later_readers(tensor)]:
            operation = self.facts.operation(node)
            if place >= 0 and place == self.facts.forgets(node):
                uses.add(GOOD)  # whatever it held is forgotten
                continue
            if operation.is_value_free or self._only_looks(node, operation, tensor):
                continue
            outputs = self.facts.outputs_of(node)
            if not outputs:
                # `item()`: the value has left the program, and what was done with it is not known.
                if operation.name == LEAVES:
                    uses.add(LEFT)
                continue
            if 1 < len(outputs) > place and operation.is_over_lists:
                outputs = [outputs[place]]
            known = [self.verdicts[each] for each in outputs if each in self.verdicts]
            if known:
                uses.add(BAD if BAD in known else UNKNOWN if UNKNOWN in known else GOOD)
            elif only_carries(self.facts, node):
                views.update(dict.fromkeys(outputs))
            else:
                statuses = {self._status(each) for each in outputs}
                uses.add(UNKNOWN if UNKNOWN in statuses else GOOD)
        return uses, list(views)

    def _later_readers(self, tensor: str) -> list[tuple[Node, int]]:
        """What takes the memory that an operation has written to, by another name: `x` after `x[0] = y`."""
        node = self.facts.node_of(tensor)
        if node is None or not self.facts.is_in_place(node):
            return []
        if self._readers is None:
            self._readers = {}
            for reader in self.facts.nodes.values():
                for writer in self.facts.writers_of(reader):
                    self._readers.setdefault(writer, []).append((reader, -1))
        return self._readers.get(node.name, [])

    def _only_looks(self, node: Node, operation: Operation, tensor: str) -> bool:
        """Whether an operation only looks at a value, as programs look at their loss: that is no use of it."""
        # Infinities among other numbers have their place in an order, and are equal to those of another mask.
        if operation.compares or (operation.checks and len(set(node.inputs)) > 1):
            health = self.facts.health_behind(tensor)
            return health is None or bool(health.nan) or health.elements == 1
        return operation.checks

    def _was_skipped(self, mattering: list[str]) -> bool:
        """Whether only gradients were bad, and a scaler, or the program itself, has kept them from the parameters."""
        order = self.facts.order
        places = [order[each] for each in order if self._is_gradient(each)]
        if not places or any(order[tensor] < min(places) for tensor in mattering):
            return False
        if any(self.facts.written_variable(tensor) is not None for tensor in mattering):
            return False
        engine = self.facts.circumstances.engine
        if any(operation_of(each, engine).name == UNSCALES for each in set(self.facts.op_types.values())):
            return True
        tested = [each for each in self.bad if order[each] >= min(places) and self._is_tested(each)]
        return bool(tested) and all(map(self._went_on_after, tested))

    def _is_tested(self, tensor: str) -> bool:
        return self._is_looked_at(tensor) or LEFT in self._uses(tensor)

    def _is_gradient(self, tensor: str) -> bool:
        return tensor in self.facts.gradient_tensors

    def spread(self, producer: str, consequences: Iterable[str] = ()) -> tuple[str, ...]:
        """The tensors that went bad because of one, in the order they did."""
        node = self.facts.node_of(producer)
        pending = [producer, *consequences]
        if node is not None:
            pending += [each for each in self.facts.outputs_of(node) if self.verdicts.get(each) == BAD]
        reached = set(pending)
        # Along the graph, not in the order of recording: a view that is kept for its bad value comes after its use.
        while pending:
            for tensor in self._bad_outputs().get(pending.pop(), ()):
                if tensor not in reached:
                    reached.add(tensor)
                    pending.append(tensor)
        return tuple(tensor for tensor in self.bad if tensor in reached and tensor != producer)

    def follows(self, tensor: str, first: str) -> bool:
        """Whether a bad value may come of an earlier one by a way that the graph does not show."""
        node = self.facts.node_of(tensor)
        if node is None or self.facts.order.get(tensor, 0) < self.facts.order.get(first, 0):
            return False
        if collective_behind(self.facts, node) is not None:
            return True
        # A checkpointed module is called once more for its gradients, and does again what it did.
        if node.name.startswith(_AGAIN) and self.verdicts.get(tensor.removeprefix(_AGAIN)) == BAD:
            return True
        # A number that had left the program came back: `losses[i] = loss.item()`.
        if self._has_bad_number(node):
            return True
        forward = self.facts.forward_of(node)
        if forward is None:
            return False
        around = [*forward.inputs, *self.facts.outputs_of(forward)]
        return any(self._status(each) in (BAD, PARTLY) for each in around)

    def _bad_outputs(self) -> dict[str, list[str]]:
        """The bad tensors that were made of each bad tensor."""
        if not self._made_into:
            for tensor in self.bad:
                for each in self._bad_inputs(tensor):
                    self._made_into.setdefault(each, []).append(tensor)
        return self._made_into


def _is_no_number(attribute: object) -> bool:
    return attribute == VARIES or (isinstance(attribute, float) and not math.isfinite(attribute))
