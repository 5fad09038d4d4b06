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
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace

from tensortap.analyze.collectives import collective_behind
from tensortap.analyze.explain import explain
from tensortap.analyze.facts import RunFacts, module_of, phase_of
from tensortap.analyze.findings import Cause, Finding, InputHealth, RunReport
from tensortap.analyze.health import Health, number_text
from tensortap.analyze.reach import Judged
from tensortap.analyze.verdicts import BAD, GOOD, INTENDED, PARTLY, UNKNOWN, Condition
from tensortap.records import Node, Shard, split_tensor_name

__all__ = ["Condition", "first_bad", "made_by_update", "maker_of", "search", "standing"]

_FARTHEST_VIEW = 8

MOST_FINDINGS = 20
"""Findings of one run that are looked into: once every weight is NaN, all of them are."""


def first_bad(
    facts: RunFacts, *, exclude: str | None = None, condition: Condition | None = None
) -> Finding | None:
    """The first bad value of one run, explained; None if the run is healthy.

    Args:
        facts: the run.
        exclude: regular expression; nodes in whose name it is found are never bad.
        condition: replaces "holds NaN or infinities".

    >>> import numpy as np
    >>> from tensortap.analyze.health import Health
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
    judged = Judged(facts, None, None)
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
    judged = Judged(facts, re.compile(exclude) if exclude else None, condition)
    # What a user calls bad is an alarm wherever it is.
    reaching = judged.reaching() if condition is None else set(judged.bad)
    producers = judged.producers()
    if judged.bad and not producers:
        # In a loop everything may be made of something bad: then what was bad first stands for its maker.
        producers = judged.bad[:1]
        reaching |= set(producers)
    if facts.circumstances.is_preparation and condition is None:
        reaching = _reaching_before_steps(judged, reaching)
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


def _reaching_before_steps(judged: Judged, reaching: set[str]) -> set[str]:
    """What matters of what is made before the first step: nothing until a step uses it. If no step came until the
    program was over, NaN; infinities alone are often meant."""
    if judged.facts.circumstances.counts_steps:
        return set()
    healths = map(judged.facts.health, reaching)
    return reaching if any(health is not None and health.nan for health in healths) else set()


def standing(facts: RunFacts) -> dict[str, str]:
    """Every tensor of a run with NaN or infinities: `bad`; or `meant`, put there on purpose; or `harmless`, as it
    came to nothing."""
    judged = Judged(facts, None, None)
    reaching = judged.reaching()
    found = {tensor: "bad" if tensor in reaching else "harmless" for tensor in judged.bad}
    return found | {tensor: "meant" for tensor, verdict in judged.verdicts.items() if verdict == INTENDED}


def _is_overflow(cause: Cause, finding: Finding) -> bool:
    """Whether a smaller loss scale would have helped: a division by zero stays one at any scale."""
    if cause.kind in ("unknown", "input-not-recorded"):
        return finding.health.infinities > 0
    return "overflow" in cause.kind


def _locals_first(facts: RunFacts, tensors: list[str]) -> list[str]:
    """What others come of goes first, if the order of time does not tell.

    Values that came bad from another rank have their maker there. Where operations run side by side, a gradient may be
    worked out before the value that it is the gradient of, from the same bad place.
    """

    everything = set(tensors)

    def rank(tensor: str) -> int:
        node = facts.node_of(tensor)
        if node is None:
            return 0
        if collective_behind(facts, node) is not None:
            return 2
        forward = facts.forward_of(node)
        return int(forward is not None and not everything.isdisjoint(facts.outputs_of(forward)))

    return sorted(tensors, key=rank)


def _finding(judged: Judged, tensor: str, consequences: Iterable[str] = ()) -> Finding:
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
        timestamp=facts.bad_moment(node) or facts.times.get(tensor, 0),
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
        during=_with_iteration(_during(facts, facts.times.get(tensor, 0)), node),
        came_by=collective_behind(facts, node),
        parts=_parts(facts, (tensor, *(each.tensor for each in inputs))),
    )


def _parts(facts: RunFacts, tensors: Iterable[str]) -> tuple[str, ...]:
    """What this rank has of the sharded parameters among some tensors, or behind their views."""
    said: dict[str, None] = {}
    for tensor in tensors:
        name = facts.gradient_tensors.get(tensor) or facts.written_variable(tensor)
        node = facts.nodes.get(name) if name is not None else facts.node_of(tensor)
        for _ in range(_FARTHEST_VIEW):
            if node is None or not node.inputs or not facts.is_view(node):
                break
            node = facts.node_of(node.inputs[0])
        shard = None if node is None else Shard.of_attributes(node.attributes)
        if node is not None and shard is not None and shard.words:
            said[shard.on_rank(facts.info.task, node.name)] = None
    return tuple(said)


def made_by_update(facts: RunFacts, update: Node, health: Health) -> Finding:
    """The finding that an update has made a variable bad, from what the variable was afterwards."""
    handle = update.inputs[facts.operation(update).place_of("variable")]
    variable = facts.variable_of(handle) or ""
    read = facts.reads.get(variable)
    inputs = tuple(
        InputHealth(read, facts.health(read), GOOD, None)
        if each.tensor == handle and read is not None
        else each
        for each in Judged(facts, None, None).inputs_of(update, 0)
    )
    finding = Finding(
        run=facts.info.index,
        step=facts.info.global_step if facts.circumstances.counts_steps else -1,
        rank=facts.info.task,
        timestamp=max(facts.times.values(), default=0),
        run_name=facts.name,
        node=update,
        slot=0,
        health=health,
        phase=phase_of(update),
        module=variable.rpartition("/")[0] or None,
        source=update.source,
        source_text=None if update.source is None else facts.source_line(update.source),
        inputs=inputs,
        propagators=(),
        reached=(),
        is_certain=all(map(_is_certain, inputs)),
        during=_during(facts, 0),
    )
    return replace(finding, cause=explain(finding, facts))


def _with_iteration(during: str | None, node: Node) -> str | None:
    """What the program was doing, and in which iteration of a loop, if the engine has told that."""
    iteration = node.attributes.get("iteration")
    if not iteration:
        return during
    return ", ".join(filter(None, (during, f"iteration {iteration}")))


def _during(facts: RunFacts, timestamp: int) -> str | None:
    """What the program was doing in this run at some time, in words."""
    known = facts.circumstances
    if known.is_preparation:
        return (
            "preparation, before the first step"
            if known.counts_steps
            else "all of a program without modules, optimizers and backward passes"
        )
    if known.trains is None:
        return None
    if not known.trains:
        call = bisect_right(known.calls, timestamp)
        which = f"; call {call} in it" if call else ""
        return f"evaluation: nothing is trained in this run{which}"
    if known.by_passes:
        return "training without an optimizer; a step goes from one backward pass to the next"
    rates = ", ".join(f"{number_text(rate)} ({name})" for name, rate in known.learning_rates.items())
    return f"training, learning rate {rates}" if rates else "training"


def _is_certain(given: InputHealth) -> bool:
    """Whether an input is known to be good; a count of NaNs leaves open whether there were infinities."""
    return given.status not in (UNKNOWN, PARTLY) and (given.health is None or not given.health.is_count)


def _reached(judged: Judged, everything: tuple[str, ...]) -> tuple[str, ...]:
    """What of importance went bad, in words."""
    facts = judged.facts
    said = []
    for each in everything:
        if judged.is_loss(each):
            said.append(f"the loss ({each})")
            break
    gradients = {facts.gradient_tensors[each] for each in everything if each in facts.gradient_tensors}
    if gradients:
        said.append(f"{len(gradients)} of {len(facts.gradients)} gradients")
    written = {facts.written_variable(each) for each in everything} - {None}
    state = {each for each in written if each is not None and facts.phase(each) != "optimizer"}
    parameters = state & facts.gradients.keys()
    for kind, names in (("parameter", parameters), ("buffer", state - parameters)):
        if names:
            said.append(f"{len(names)} {kind}{'s' if len(names) > 1 else ''}")
    return tuple(said)
