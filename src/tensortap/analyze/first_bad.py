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

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from tensortap.analyze.explain import explain
from tensortap.analyze.facts import RunFacts, module_of, phase_of
from tensortap.analyze.findings import Cause, Finding, InputHealth, RunReport
from tensortap.analyze.health import Health
from tensortap.analyze.ops import (
    CASTS,
    CHECKS,
    COMMUNICATION,
    COMPARISONS,
    GARBAGE,
    MASK_MAKERS,
    PARTIAL_VIEWS,
    SIGN_CHANGERS,
    SOURCES,
    VALUE_FREE,
    VIEWS,
    group_size,
    is_in_place,
    is_over_lists,
    overwrites,
    plain_name,
)
from tensortap.records import Node, split_tensor_name

__all__ = ["Condition", "first_bad", "search"]

Condition = Callable[[Health], bool]
"""A user's idea of bad: asked about the health of every tensor."""

MOST_FINDINGS = 20
"""Findings of one run that are looked into: once every weight is NaN, all of them are."""

GOOD, BAD, INTENDED, PARTLY, UNKNOWN = "good", "bad", "intended", "partly", "unknown"

_FLOATS = re.compile(r"float|complex|unknown|bf16")
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"


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
    alarms = _locals_first(facts, [tensor for tensor in producers if tensor in reaching])
    harmless = [tensor for tensor in producers if tensor not in reaching]
    findings = [_finding(judged, tensor) for tensor in alarms[:MOST_FINDINGS]]
    contained = [_finding(judged, tensor) for tensor in harmless[:MOST_FINDINGS]]
    notices = tuple(facts.notices)
    excused = [each for each in findings if judged.was_skipped and _is_overflow(explain(each, facts), each)]
    if excused:
        findings = [each for each in findings if each not in excused]
        contained = [*excused, *contained]
        notices += (
            "Gradients overflowed and the gradient scaler skipped this step: that is how it finds its scale.",
        )
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
        len(facts.tensors),
        notices,
    )


def _is_overflow(cause: Cause, finding: Finding) -> bool:
    """Whether a smaller loss scale would have helped: a division by zero stays one at any scale."""
    if cause.kind in ("unknown", "input-not-recorded"):
        return finding.health.infinities > 0
    return "overflow" in cause.kind


def _locals_first(facts: RunFacts, tensors: list[str]) -> list[str]:
    """Values that came bad from another rank have their maker there: anything made here goes first."""

    def is_received(tensor: str) -> bool:
        node = facts.node_of(tensor)
        return node is not None and COMMUNICATION.search(node.op_type) is not None

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
        self._made_of: dict[str, list[str]] = {}
        self._readers: dict[str, list[tuple[Node, int]]] | None = None
        self._made_into: dict[str, list[str]] = {}
        for tensor in facts.tensors:
            self.verdicts[tensor] = verdict = self._judge(tensor, exclude)
            if verdict == BAD:
                self.bad.append(tensor)
            elif verdict == INTENDED:
                self.intended_count += 1

    def _judge(self, tensor: str, exclude: re.Pattern[str] | None) -> str:
        health = self.facts.health(tensor)
        if health is None:
            return UNKNOWN
        is_bad = health.is_bad if self._condition is None else self._condition(health)
        if not is_bad:
            return GOOD
        node = self.facts.node_of(tensor)
        if node is not None and plain_name(node.op_type) in GARBAGE:
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
        name = plain_name(node.op_type)
        if node.op_type in SOURCES:
            # A mask holds zeros and −inf, or is a constant; weights and data have other numbers beside them.
            if f"gradients/{node.name}" in self.facts.op_types:
                return False
            is_mask = not health.pos_inf and not health.negative and not health.positive
            # Nothing but infinities: the bound of what is not bounded, or where a search for the least begins.
            is_bound = health.infinities == health.elements
            limit = 1 if node.op_type == "Const" else health.elements
            return is_mask or (is_bound and node.op_type != "Placeholder" and health.elements <= limit)
        if phase_of(node) != "forward":
            return name in VIEWS and bool(node.inputs) and self.input_status(node, 0) == INTENDED
        inherited = [self.input_status(node, place) for place in range(len(node.inputs))]
        if BAD in inherited or PARTLY in inherited:
            return False
        if INTENDED not in inherited:
            return name in MASK_MAKERS and _makes_infinity(node)
        if name in MASK_MAKERS or name in CASTS:
            return True
        given = [self.facts.health_behind(each) for each in node.inputs]
        most = max((each.elements for each in given if each is not None), default=0)
        if health.elements <= 1 < most:
            return False  # a sum or a maximum over masked elements is a result
        had_positive = any(each is not None and each.pos_inf for each in given)
        return not health.pos_inf or had_positive or name in SIGN_CHANGERS

    # --- inputs ------------------------------------------------------------------------------------

    def relevant(self, node: Node, slot: int) -> list[int]:
        """Places of the inputs that the values of an output depend on."""
        if plain_name(node.op_type) in VALUE_FREE:
            return []
        places = list(range(len(node.inputs)))
        count = len(node.outputs)
        if is_over_lists(node.op_type) and count > 1:
            # Lists of tensors one after the other, worked on in parallel; what is left over is for all of them.
            group = group_size(node)
            lists = len(places) // group * group
            places = [each for each in places if each >= lists or each % group == slot % group]
        return places[1:] if overwrites(node.op_type) else places

    def input_status(self, node: Node, place: int) -> str:
        """What a node was given at one place."""
        name = node.inputs[place]
        status = self._status(name, 0)
        if node.control_inputs:
            # Its memory was written to through another name since it was recorded.
            writers = [self.verdicts.get(f"{each}:0", GOOD) for each in node.control_inputs]
            if BAD in writers and self._is_fresh_memory(name):
                return BAD
            if status == BAD:
                return PARTLY
        return status

    def _status(self, tensor: str, depth: int) -> str:
        known = self.verdicts.get(tensor)
        if known is not None:
            return known
        node = self.facts.node_of(tensor)
        if node is None or depth > 1000:
            return GOOD if self.facts.is_muted else UNKNOWN
        spec = self.facts.spec(tensor)
        if spec is not None and not _FLOATS.search(spec.dtype):
            return GOOD
        name = plain_name(node.op_type)
        if name in GARBAGE:
            return GOOD
        if name in VIEWS and node.inputs:
            below = self._status(node.inputs[0], depth + 1)
            writers = [self.verdicts.get(f"{each}:0", GOOD) for each in node.control_inputs]
            if BAD in writers:
                return BAD
            return PARTLY if below == BAD and name in PARTIAL_VIEWS else below
        return GOOD if self.facts.is_muted else UNKNOWN

    def _is_fresh_memory(self, tensor: str) -> bool:
        node = self.facts.node_of(tensor)
        return node is None or self.verdicts.get(tensor) != BAD

    def inputs_of(self, node: Node, slot: int) -> tuple[InputHealth, ...]:
        """What a node was given, for the report."""
        named: dict[str, InputHealth] = {}
        for place in self.relevant(node, slot):
            tensor = node.inputs[place]
            if tensor not in named:
                health, whole = self.facts.behind(tensor)
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
        for _ in range(1000):
            if tensor in self.verdicts:
                return [tensor] if self.verdicts[tensor] == BAD else []
            node = self.facts.node_of(tensor)
            if node is None or not node.inputs:
                return []
            bad = [each for each in self._writers(node) if self.verdicts.get(each) == BAD]
            if bad:
                return bad
            tensor = node.inputs[0]
        return []

    def reaching(self) -> set[str]:
        """The bad tensors from which a bad value went on to something that matters."""
        pending = [tensor for tensor in self.bad if self._matters(tensor)]
        self.was_skipped = bool(pending) and self._was_skipped(pending)
        reaching = set(pending)
        while pending:
            for tensor in self._bad_inputs(pending.pop()):
                if tensor not in reaching:
                    reaching.add(tensor)
                    pending.append(tensor)
        return reaching

    def _matters(self, tensor: str) -> bool:
        node, slot = self.facts.node_of(tensor), split_tensor_name(tensor)[1] or 0
        if node is None or node.op_type == "AccumulateGrad":
            return True
        if self.facts.written_variable(tensor) is not None:
            return True
        uses = list(self._uses(tensor))
        if uses:
            return UNKNOWN in uses
        # Statistics that an operation returns beside its result, and nobody used.
        return slot == 0 or self.verdicts.get(node.tensor(0)) == BAD

    def _uses(self, tensor: str, depth: int = 0) -> Iterable[str]:
        """What came of every use of a tensor's values, seen through views that were not recorded."""
        for node, place in [*self.facts.consumers(tensor), *self._later_readers(tensor)]:
            name = plain_name(node.op_type)
            if overwrites(node.op_type) and place == 0:
                yield GOOD  # whatever it held is forgotten
                continue
            if name in VALUE_FREE or self._only_looks(name, tensor):
                continue
            if not node.outputs:
                # `item()`: the value has left the program, and what was done with it is not known.
                if name == "local_scalar_dense":
                    yield UNKNOWN
                continue
            outputs = [node.tensor(slot) for slot in range(len(node.outputs))]
            if 1 < len(outputs) > place and is_over_lists(node.op_type):
                outputs = [outputs[place]]
            known = [self.verdicts[each] for each in outputs if each in self.verdicts]
            if known:
                yield BAD if BAD in known else GOOD
            elif name in VIEWS and depth < 100:
                for each in outputs:
                    yield from self._uses(each, depth + 1)
            else:
                statuses = {self._status(each, 0) for each in outputs}
                yield UNKNOWN if UNKNOWN in statuses else GOOD

    def _later_readers(self, tensor: str) -> list[tuple[Node, int]]:
        """What takes the memory that an operation has written to, by another name: `x` after `x[0] = y`."""
        name = split_tensor_name(tensor)[0]
        if not is_in_place(self.facts.op_types.get(name, "")):
            return []
        if self._readers is None:
            self._readers = {}
            for reader in self.facts.nodes.values():
                for writer in reader.control_inputs:
                    self._readers.setdefault(writer, []).append((reader, -1))
        return self._readers.get(name, [])

    def _only_looks(self, name: str, tensor: str) -> bool:
        """Whether an operation only looks at a value, as programs look at their loss: that is no use of it."""
        if name in COMPARISONS:
            health = self.facts.health_behind(tensor)
            # Infinities among other numbers have their place in an order.
            return health is None or bool(health.nan) or health.elements == 1
        return name in CHECKS

    def _was_skipped(self, mattering: list[str]) -> bool:
        """Whether only gradients were bad, and a gradient scaler has kept them from the parameters."""
        if not any(op_type.endswith(_UNSCALE) for op_type in self.facts.op_types.values()):
            return False
        order = self.facts.order
        places = [order[each] for each in order if self._is_gradient(each)]
        if not places or any(order[tensor] < min(places) for tensor in mattering):
            return False
        return all(self.facts.written_variable(tensor) is None for tensor in mattering)

    def _is_gradient(self, tensor: str) -> bool:
        return self.facts.op_types.get(split_tensor_name(tensor)[0]) == "AccumulateGrad"

    def spread(self, producer: str) -> tuple[str, ...]:
        """The tensors that went bad because of one, in the order they did."""
        node = self.facts.node_of(producer)
        pending = [producer]
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

    def _bad_outputs(self) -> dict[str, list[str]]:
        """The bad tensors that were made of each bad tensor."""
        if not self._made_into:
            for tensor in self.bad:
                for each in self._bad_inputs(tensor):
                    self._made_into.setdefault(each, []).append(tensor)
        return self._made_into


def _makes_infinity(node: Node) -> bool:
    """Whether one of the constants a node was given is infinite; True if they are not known."""
    numbers = [each for each in node.attributes.values() if isinstance(each, float)]
    constants = [key for key in ("value", "fill_value", "s") if key in node.attributes]
    return any(abs(each) == float("inf") for each in numbers) or any(
        isinstance(node.attributes[key], str) for key in constants
    )


def _finding(judged: _Judged, tensor: str) -> Finding:
    facts = judged.facts
    spread = judged.spread(tensor)
    name, slot = split_tensor_name(tensor)
    node = facts.node_of(tensor) or Node(name, "?")
    health = facts.health(tensor)
    assert health is not None
    inputs = judged.inputs_of(node, slot or 0)
    # What came from outside the step has no line of its own, but one that uses it first.
    source = node.source or next((user.source for user, _ in facts.consumers(tensor) if user.source), None)
    variable = facts.written_variable(tensor) if node.name.startswith("optimizer/") else None
    return Finding(
        run=facts.info.index,
        step=facts.info.global_step,
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
        reached=_reached(facts, tensor, spread),
        is_certain=node.op_type != "?" and all(map(_is_certain, inputs)),
    )


def _is_certain(given: InputHealth) -> bool:
    """Whether an input is known to be good; a count of NaNs leaves open whether there were infinities."""
    return given.status not in (UNKNOWN, PARTLY) and (given.health is None or not given.health.is_count)


def _reached(facts: RunFacts, tensor: str, spread: tuple[str, ...]) -> tuple[str, ...]:
    """What of importance went bad, in words."""
    everything = (tensor, *spread)
    said = []
    for each in everything:
        if any(plain_name(node.op_type) == "ones_like" for node, _ in facts.consumers(each)):
            health = facts.health(each)
            if health is not None and health.elements == 1:
                said.append(f"the loss ({each})")
                break
    gradients = [
        each for each in everything if facts.op_types.get(split_tensor_name(each)[0]) == "AccumulateGrad"
    ]
    if gradients:
        total = list(facts.op_types.values()).count("AccumulateGrad")
        said.append(f"{len(gradients)} of {total} gradients")
    written = {facts.written_variable(each) for each in everything} - {None}
    parameters = {each for each in written if each is not None and not each.startswith("optimizer/")}
    if parameters:
        said.append(f"{len(parameters)} parameter{'s' if len(parameters) > 1 else ''}")
    return tuple(said)
