"""Sigmoids and hyperbolic tangents at their ends, where they have no slope."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import Flow, flow_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


import math

from tensortap.records import Node

_STEEPEST = {"sigmoid": 0.25, "tanh": 1.0}
FLAT = 0.03
"""The mean slope, as a share of the steepest one, below which hardly a gradient comes through."""

ENOUGH = 8
"""Runs in which it has to be so."""

_LOSSES = (
    "binary_cross_entropy",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "log",
    "log1p",
    "rsub",
    "sub",
    "nll_loss",
    "kl_div",
)


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """The first activation of each model whose slope is nearly nothing, in all runs."""
    slopes: dict[str, list[tuple[float, Flow, Node]]] = {}
    trained = [flow for flow in map(flow_of, evidence.runs) if flow.trains]
    if len(trained) < ENOUGH:
        return
    for flow in trained:
        for node in flow.nodes(*_STEEPEST):
            if not flow.is_trained(node):
                continue
            share = _slope(flow, node)
            if share is not None:
                slopes.setdefault(node.name, []).append((share, flow, node))
    told = set()
    for runs in sorted(slopes.values(), key=lambda each: _order(each[0][1], each[0][2])):
        share, flow, node = runs[0]
        model = (node.module or node.name).partition("/")[0]
        if model in told or len(runs) < ENOUGH or any(each > FLAT for each, _, _ in runs):
            continue
        if flow.reaches(node.tensor(), _LOSSES, ("mul", "add", "clamp")) is not None:
            continue  # sure of its answer
        told.add(model)
        others = sum(1 for each in slopes.values() if all(share <= FLAT for share, _, _ in each)) - 1
        passed = _passed(*runs[-1][1:])
        yield RULE.finding(
            node.module or node.name,
            f"{node.name} is saturated in all {len(runs)} runs: its mean slope is {share:.2%} of the steepest, so that "
            f"hardly a gradient comes through to what is before it.",
            step=flow.step,
            source=node.own_source,
            evidence={
                "mean slope, of the steepest": max(each for each, _, _ in runs),
                "gradient that comes through": passed,
                "runs": len(runs),
                "further saturated activations": others,
            },
            weight=0.5,
        )


def _slope(flow: Flow, node: Node) -> float | None:
    """The mean derivative, which the mean and the variance of the output tell exactly."""
    health = flow.health(node.tensor())
    if health is None or not health.elements or not math.isfinite(health.variance):
        return None
    operation = flow.facts.operation(node).name
    squares = health.variance + health.mean**2
    slope = health.mean - squares if operation == "sigmoid" else 1 - squares
    return max(slope, 0.0) / _STEEPEST[operation]


def _passed(flow: Flow, node: Node) -> float | None:
    """The share of the gradient that comes through."""
    for backward, _ in flow.facts.consumers(node.tensor()):
        if (
            flow.facts.phase(backward.name) == "backward"
            and backward.forward == node.name
            and backward.outputs
        ):
            after, before = flow.health(backward.tensor()), flow.health(backward.inputs[0])
            if after is not None and before is not None and before.magnitude:
                return after.magnitude / before.magnitude
    return None


def _order(flow: Flow, node: Node) -> int:
    return flow.facts.order.get(node.tensor(), 0)


RULE = Rule(
    "saturated",
    "likely",
    "The mean slope of a sigmoid or hyperbolic tangent, worked out from mean and variance of its output, is "
    "below 3 % of the steepest one in every run that was kept, eight at least: the layers before it hardly "
    "get a gradient. The first such activation of a model is named. Those whose output goes straight into a "
    "loss may be right, and are left alone.",
    "nn.init.normal_(layer.weight, std=30)\nhidden = torch.sigmoid(layer(x))",
    "the mean slope, and the share of the gradient that comes through",
    "Scale the inputs to about unit variance, and initialise the layer before it as its kind is usually "
    "initialised.",
    find,
)
