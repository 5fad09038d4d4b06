"""Gradients too small for float16."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import Flow, flow_of, root_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


from tensortap.records import Node

ENOUGH = 3
"""Runs in which it has to be so."""

_ROUNDS = ("to_copy", "copy", "mm", "addmm", "mul", "div", "convolution_backward")
_LOST, _THERE = 0.9, 0.5
_NORMAL = 6.2e-5


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Backward passes without a gradient scaler in which float16 turns gradients to zero."""
    found: list[tuple[Flow, Node, float, int, int]] = []
    for flow in map(flow_of, evidence.runs):
        if not flow.trains:
            continue
        if any(event.what in ("unscale", "skip") for update in evidence.updates for event in update.events):
            return
        if any(flow.facts.operation_named(each).name == "unscale" for each in flow.facts.op_types.values()):
            return
        gradients = [flow.health(each) for each in flow.facts.gradients.values()]
        there = [each for each in gradients if each is not None and each.elements]
        empty = sum(each.zero >= _LOST * each.elements for each in there)
        flushed = None if 2 * empty < len(there) else _flushed(flow)
        if flushed is not None:
            found.append((flow, *flushed, empty, len(there)))
    if len(found) < ENOUGH:
        return
    flow, node, largest, empty, known = found[0]
    forward = flow.facts.forward_of(node) or node
    yield RULE.finding(
        root_of(next(iter(flow.facts.gradients))),
        f"Gradients are too small for float16: where {forward.name} passes them on they are {largest:.2g} at most, and "
        f"become zero; {empty} of {known} parameters get gradients of nothing but zeros.",
        step=flow.step,
        source=forward.own_source or node.own_source,
        evidence={
            "largest gradient before rounding": largest,
            "parameters whose gradient is zero": empty,
            "parameters with a gradient": known,
            "runs": len(found),
        },
    )


def _flushed(flow: Flow) -> tuple[Node, float] | None:
    """The first node of the backward pass that makes zeros of gradients by rounding, and the largest of them."""
    facts = flow.facts
    for name, op_type in facts.op_types.items():
        if facts.phase(name) != "backward" or facts.operation_named(op_type).name not in _ROUNDS:
            continue
        node = facts.nodes[name]
        if not node.outputs or node.outputs[0].dtype != "float16":
            continue
        after = flow.health(node.tensor())
        given = [each for each in node.inputs if facts.phase(each.rpartition(":")[0]) == "backward"]
        before = flow.health(given[0]) if given else None
        if after is None or before is None or not after.elements or not before.elements:
            continue
        if (
            after.zero >= _LOST * after.elements
            and before.zero <= _THERE * before.elements
            and before.magnitude < _NORMAL
        ):
            return node, before.magnitude
    return None


RULE = Rule(
    "float16-gradients-vanish",
    "sure",
    "An operation of the backward pass in float16 turns nine tenths of its gradients to zero although most of "
    "what it was given is not, because it is below the smallest numbers float16 has; half of the parameters "
    "or more get nothing but zeros; no gradient scaler is at work; and that in three runs at least.",
    'with torch.autocast("cuda", dtype=torch.float16):\n    loss = loss_fn(model(x), y)\nloss.backward()  # no scaler',
    "the largest gradient before it was rounded, and how many parameters get zeros",
    "Use torch.amp.GradScaler, or bfloat16, or make the loss larger.",
    find,
)
