"""Which operation made the first bad value of a run.

1. Every recorded tensor is judged: bad if it holds NaN or infinities, or if a filter of the user's says so.
2. Infinities put there on purpose are set aside: the masks of attention, made by `masked_fill`, `where`, `full` and the
   like, and what merely carries them on. NaN is never meant.
3. A node with a bad output whose inputs are all good is a **producer**, one with a bad input a **propagator**.
   Views that were not recorded stand for what they show. An input nobody recorded is unknown, and the answer says so.
4. A producer counts if what it made **reaches** something: the loss or another result, a gradient, a parameter. What is
   masked out or swallowed on its way (a softmax over −inf, a cast to integers) is contained, and no alarm.
   To look at a value, as programs look at their loss, is no use of it. A gradient scaler excuses overflows only.
5. The first producer that counts, in the order of execution, is the answer.
"""

from __future__ import annotations

import functools
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace

from tensortap.analyze.case import VARIES, group_size
from tensortap.analyze.explain import explain
from tensortap.analyze.facts import RunFacts, module_of, phase_of
from tensortap.analyze.findings import Cause, Finding, InputHealth, RunReport
from tensortap.analyze.health import Health, number_text
from tensortap.analyze.vocabulary import operation_of
from tensortap.analyze.vocabulary.canonical import BEGINS_BACKWARD, LEAVES, UNSCALES, Operation
from tensortap.places import SOURCES, parameter_of_gradient
from tensortap.records import Node, split_tensor_name

__all__ = ["Condition", "first_bad", "maker_of", "search", "standing"]

Condition = Callable[[Health], bool]
"""A user's idea of bad: asked about the health of every tensor."""

MOST_FINDINGS = 20
"""Findings of one run that are looked into: once every weight is NaN, all of them are."""

GOOD, BAD, INTENDED, PARTLY, UNKNOWN = "good", "bad", "intended", "partly", "unknown"
LEFT = "left"
"""A use: the value left the program's tensors as a number."""

_FLOATS = re.compile(r"float|complex|unknown|bf16")


def first_bad(
    facts: RunFacts, *, exclude: str | None = None, condition: Condition | None = None
) -> Finding | None:
    """The first bad value of one run, explained; None if the run is healthy.

    Args:
        facts: the run.
        exclude: regular expression; nodes in whose name it is found are never bad.
        condition: replaces "holds NaN or infinities".

    >>> import numpy as np
    >>> from tensortap.records import RunInfo
    >>> x, y = np.array([4.0, 0.0]), np.array([1.386, -np.inf])
    >>> nodes = {"x": Node("x", "Placeholder"), "log": Node("log", "aten::log", inputs=("x:0",))}
    >>> healths = {"x:0": Health.of_value(x), "log:0": Health.of_value(y)}
    >>> found = first_bad(RunFacts(RunInfo(0, 7, 1), nodes, healths))
    >>> found.node.name, found.step, found.cause.kind
    ('log', 7, 'log-of-zero')
    """
    return search(facts, exclude=exclude, condition=condition).first_bad


def maker_of(facts: RunFacts, tensor: str) -> Finding | None:
    """What made a tensor of this run bad, whether or not it did harm there; None if it was not bad."""
    judged = _Judged(facts, None, None)
    if judged.verdicts.get(tensor) not in (BAD, INTENDED):
        return None
    found = _finding(judged, judged.maker_of(tensor))
    return replace(found, cause=explain(found, facts))


def search(
    facts: RunFacts,
    *,
    exclude: str | None = None,
    condition: Condition | None = None,
    explained: bool = True,
) -> RunReport:
    """Everything bad in one run: alarms, and what was contained."""
    judged = _Judged(facts, re.compile(exclude) if exclude else None, condition)
    # What a user calls bad is an alarm wherever it is.
    reaching = judged.reaching() if condition is None else set(judged.bad)
    producers = judged.producers()
    if judged.bad and not producers:
        # In a loop everything may be made of something bad: then what was bad first stands for its maker.
        producers = judged.bad[:1]
        reaching |= set(producers)
    if facts.circumstances.is_preparation and condition is None:
        reaching = set()  # what is made before the first step counts when a step uses it
    alarms = _locals_first(facts, [tensor for tensor in producers if tensor in reaching])
    harmless = [tensor for tensor in producers if tensor not in reaching]
    consequences = (
        [] if condition is not None else [each for each in alarms[1:] if judged.follows(each, alarms[0])]
    )
    alarms = [each for each in alarms if each not in consequences]
    findings = [
        _finding(judged, tensor, () if place else consequences)
        for place, tensor in enumerate(alarms[:MOST_FINDINGS])
    ]
    contained = [_finding(judged, tensor) for tensor in harmless[:MOST_FINDINGS]]
    notices = tuple(facts.notices)
    excused = [each for each in findings if judged.was_skipped and _is_overflow(explain(each, facts), each)]
    if excused:
        findings = [each for each in findings if each not in excused]
        contained = [*excused, *contained]
        notices += (
            "Gradients overflowed and the gradient scaler skipped this step: that is how it finds its scale.",
        )
    if judged.tested:
        names = ", ".join(judged.tested[:3])
        notices += (f"The program itself tested a value that was bad, and left it out: {names}.",)
    if explained:
        findings = [replace(each, cause=explain(each, facts)) for each in findings]
    info = facts.info
    return RunReport(
        info.index,
        info.global_step,
        info.task,
        facts.name,
        tuple(findings),
        tuple(contained),
        judged.intended_count,
        len(judged.bad),
        len(facts.tensors) - len(facts.unread),
        notices,
        was_tested=bool(judged.tested) or judged.was_skipped,
        unread=tuple(facts.unread),
    )


def standing(facts: RunFacts) -> dict[str, str]:
    """Every tensor of a run with NaN or infinities: `bad`; or `meant`, put there on purpose; or `harmless`, as it
    came to nothing."""
    judged = _Judged(facts, None, None)
    reaching = judged.reaching()
    found = {tensor: "bad" if tensor in reaching else "harmless" for tensor in judged.bad}
    return found | {tensor: "meant" for tensor, verdict in judged.verdicts.items() if verdict == INTENDED}


def _is_overflow(cause: Cause, finding: Finding) -> bool:
    """Whether a smaller loss scale would have helped: a division by zero stays one at any scale."""
    if cause.kind in ("unknown", "input-not-recorded"):
        return finding.health.infinities > 0
    return "overflow" in cause.kind


def _locals_first(facts: RunFacts, tensors: list[str]) -> list[str]:
    """Values that came bad from another rank have their maker there: anything made here goes first."""

    def is_received(tensor: str) -> bool:
        node = facts.node_of(tensor)
        return node is not None and facts.operation(node).communicates

    return sorted(tensors, key=is_received)


class _Judged:
    """The tensors of a run with a verdict each."""

    def __init__(self, facts: RunFacts, exclude: re.Pattern[str] | None, condition: Condition | None) -> None:
        self.facts = facts
        self._condition = condition
        self.verdicts: dict[str, str] = {}
        self.bad: list[str] = []
        self.intended_count = 0
        self.was_skipped = False
        self._left: list[str] = []  # bad values that left as numbers, and were not used otherwise
        self.tested: list[str] = []  # bad values that the program itself has tested, and left out
        self._memories: dict[str, str | None] = {}
        self._gone = frozenset(facts.circumstances.gone)
        self._made_of: dict[str, list[str]] = {}
        self._readers: dict[str, list[tuple[Node, int]]] | None = None
        self._made_into: dict[str, list[str]] = {}
        self._is_judged = False
        self._seen_through: dict[str, str] = {}
        self._found_behind: dict[str, list[str]] = {}
        self._view_uses: dict[str, set[str]] = {}
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
        if not node.control_inputs:
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
            if node.name in self.facts.gradients:
                return False
            is_mask = not health.pos_inf and not health.negative and not health.positive
            # Nothing but infinities: the bound of what is not bounded, or where a search for the least begins.
            is_bound = health.infinities == health.elements
            limit = 1 if node.op_type == "Const" else health.elements
            return is_mask or (is_bound and node.op_type != "Placeholder" and health.elements <= limit)
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

    # --- inputs ------------------------------------------------------------------------------------

    def relevant(self, node: Node, slot: int) -> list[int]:
        """Places of the inputs that the values of an output depend on."""
        operation = self.facts.operation(node)
        if operation.is_value_free:
            return []
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
        if node.control_inputs:
            # Its memory was written to through another name since it was recorded.
            writers = [self.verdicts.get(f"{each}:0", GOOD) for each in node.control_inputs]
            if BAD in writers and self._is_fresh_memory(name):
                return BAD
            if status == BAD:
                return PARTLY
        return status

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
                named[tensor] = InputHealth(tensor, health, self.input_status(node, place), whole)
        return tuple(named.values())

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
                found += self._recorded_behind(node.inputs[place])
        found += [each for each in self._writers(node) if self.verdicts.get(each) == BAD]
        return found

    def _writers(self, node: Node) -> list[str]:
        return [f"{each}:0" for each in node.control_inputs]

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
        self.was_skipped = bool(pending) and self._was_skipped(pending)
        reaching = set(pending)
        while pending:
            for tensor in self._bad_inputs(pending.pop()):
                if tensor not in reaching:
                    reaching.add(tensor)
                    pending.append(tensor)
        return reaching

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
        if node is None or node.op_type == "AccumulateGrad":
            return True
        if self.facts.written_variable(tensor) is not None or self.is_loss(tensor):
            return True
        uses = self._uses(tensor)
        if UNKNOWN in uses:
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
        if tensor in self._gone and (is_plain or self._has_bad_number(node)):
            return False  # nobody has it any more; a NaN that was not asked for may have left through NumPy
        if self._is_looked_at(tensor) and self._went_on_after(tensor):
            self.tested.append(tensor)
            return False
        # Statistics that an operation returns beside its result, and nobody used.
        return slot == 0 or self.verdicts.get(node.tensor(0)) == BAD

    def is_loss(self, tensor: str) -> bool:
        """Whether the backward pass began here: it is given a one, which only takes the shape of the loss."""
        health = self.facts.health(tensor)
        if health is None or health.elements != 1:
            return False
        return any(
            self.facts.operation(node).name == BEGINS_BACKWARD for node, _ in self.facts.consumers(tensor)
        )

    @functools.cached_property
    def _trains(self) -> bool:
        """Whether gradients were worked out in this run."""
        return "AccumulateGrad" in self.facts.op_types.values()

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
            if operation.is_value_free or self._only_looks(operation, tensor):
                continue
            if not node.outputs:
                # `item()`: the value has left the program, and what was done with it is not known.
                if operation.name == LEAVES:
                    uses.add(LEFT)
                continue
            outputs = [node.tensor(slot) for slot in range(len(node.outputs))]
            if 1 < len(outputs) > place and operation.is_over_lists:
                outputs = [outputs[place]]
            known = [self.verdicts[each] for each in outputs if each in self.verdicts]
            if known:
                uses.add(BAD if BAD in known else UNKNOWN if UNKNOWN in known else GOOD)
            elif self.facts.is_view(node):
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
                for writer in reader.control_inputs:
                    self._readers.setdefault(writer, []).append((reader, -1))
        return self._readers.get(node.name, [])

    def _only_looks(self, operation: Operation, tensor: str) -> bool:
        """Whether an operation only looks at a value, as programs look at their loss: that is no use of it."""
        if operation.compares:
            health = self.facts.health_behind(tensor)
            # Infinities among other numbers have their place in an order.
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
        return self.facts.op_types.get(split_tensor_name(tensor)[0]) == "AccumulateGrad"

    def spread(self, producer: str, consequences: Iterable[str] = ()) -> tuple[str, ...]:
        """The tensors that went bad because of one, in the order they did."""
        node = self.facts.node_of(producer)
        pending = [producer, *consequences]
        if node is not None:
            pending += [t for t in map(node.tensor, range(len(node.outputs))) if self.verdicts.get(t) == BAD]
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
        if self.facts.operation(node).communicates:
            return True
        # A number that had left the program came back: `losses[i] = loss.item()`.
        if self._has_bad_number(node):
            return True
        forward = None if node.forward is None else self.facts.nodes.get(node.forward)
        if forward is None:
            return False
        around = [*forward.inputs, *(forward.tensor(slot) for slot in range(len(forward.outputs)))]
        return any(self._status(each) in (BAD, PARTLY) for each in around)

    def _bad_outputs(self) -> dict[str, list[str]]:
        """The bad tensors that were made of each bad tensor."""
        if not self._made_into:
            for tensor in self.bad:
                for each in self._bad_inputs(tensor):
                    self._made_into.setdefault(each, []).append(tensor)
        return self._made_into


def _makes_infinity(node: Node, operation: Operation) -> bool:
    """Whether one of the constants a node was given is infinite; True if they are not known."""
    constants = [key for key in operation.numbers.get("fill", ()) if key in node.attributes]
    return _has_infinite_constant(node) or any(isinstance(node.attributes[key], str) for key in constants)


def _has_infinite_constant(node: Node) -> bool:
    return any(isinstance(each, float) and math.isinf(each) for each in node.attributes.values())


def _is_no_number(attribute: object) -> bool:
    return attribute == VARIES or (isinstance(attribute, float) and not math.isfinite(attribute))


def _finding(judged: _Judged, tensor: str, consequences: Iterable[str] = ()) -> Finding:
    facts = judged.facts
    spread = judged.spread(tensor, consequences)
    name, slot = split_tensor_name(tensor)
    node = facts.node_of(tensor) or Node(name, "?")
    health = facts.health(tensor)
    assert health is not None
    inputs = judged.inputs_of(node, slot or 0)
    # What came from outside the step has no line of its own, but one that uses it first.
    source = node.source or next((user.source for user, _ in facts.consumers(tensor) if user.source), None)
    variable = facts.written_variable(tensor) if phase_of(node) == "optimizer" else None
    return Finding(
        run=facts.info.index,
        step=facts.info.global_step if facts.circumstances.counts_steps else -1,
        rank=facts.info.task,
        timestamp=facts.times.get(tensor, 0),
        run_name=facts.name,
        node=node,
        slot=slot or 0,
        health=health,
        phase=phase_of(node),
        module=module_of(node) if variable is None else (variable.rpartition("/")[0] or None),
        source=source,
        source_text=None if source is None else facts.source_line(source),
        inputs=inputs,
        propagators=spread,
        reached=_reached(judged, (tensor, *spread)),
        is_certain=node.op_type != "?" and all(map(_is_certain, inputs)),
        during=_during(facts, facts.times.get(tensor, 0)),
    )


def _during(facts: RunFacts, timestamp: int) -> str | None:
    """What the program was doing in this run at some time, in words."""
    known = facts.circumstances
    if known.is_preparation:
        return "preparation, before the first step"
    if known.trains is None:
        return None
    if not known.trains:
        call = bisect_right(known.calls, timestamp)
        which = f"; call {call} in it" if call else ""
        return f"evaluation: nothing is trained in this run{which}"
    rates = ", ".join(f"{number_text(rate)} ({name})" for name, rate in known.learning_rates.items())
    return f"training, learning rate {rates}" if rates else "training"


def _is_certain(given: InputHealth) -> bool:
    """Whether an input is known to be good; a count of NaNs leaves open whether there were infinities."""
    return given.status not in (UNKNOWN, PARTLY) and (given.health is None or not given.health.is_count)


def _reached(judged: _Judged, everything: tuple[str, ...]) -> tuple[str, ...]:
    """What of importance went bad, in words."""
    facts = judged.facts
    said = []
    for each in everything:
        if judged.is_loss(each):
            said.append(f"the loss ({each})")
            break
    makers = map(facts.node_of, everything)
    gradients = {
        parameter_of_gradient(each)
        for each in makers
        if each is not None and each.op_type == "AccumulateGrad"
    }
    if gradients:
        said.append(f"{len(gradients)} of {len(facts.gradients)} gradients")
    written = {facts.written_variable(each) for each in everything} - {None}
    state = {each for each in written if each is not None and facts.phase(each) != "optimizer"}
    parameters = state & facts.gradients.keys()
    for kind, names in (("parameter", parameters), ("buffer", state - parameters)):
        if names:
            said.append(f"{len(names)} {kind}{'s' if len(names) > 1 else ''}")
    return tuple(said)
