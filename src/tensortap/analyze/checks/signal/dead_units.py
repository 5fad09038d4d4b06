"""Units that are silent for all inputs."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import MATRIX_PRODUCTS, NORMALISATIONS, Flow, flow_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


from tensortap.records import Node

_RECTIFIERS = ("relu", "relu6", "clamp_min", "hardtanh", "threshold")
ENOUGH = 8
"""Runs, or updates, in which it has to be so."""

MANY = 0.75
"""The share of units that is told."""

FEWEST_UNITS = 12
"""Of a small layer half may well be silent."""

_BATCH = 8
"""Samples without which a unit may well be silent by chance."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Layers in front of a rectifier of which many units never fire."""
    trained = [flow for flow in map(flow_of, evidence.runs) if flow.trains]
    silent: dict[str, list[tuple[float, Flow, Node]]] = {}
    for flow in trained:
        for node in flow.nodes(*_RECTIFIERS):
            health = flow.health(node.tensor())
            shape = flow.shape(node.tensor())
            if health is None or not health.elements or not shape or (shape[0] or 0) < _BATCH:
                continue
            if flow.depends_on_parameters(node.inputs[0]):
                silent.setdefault(node.name, []).append((health.zero / health.elements, flow, node))
    told = set()
    for runs in silent.values():
        _, flow, node = runs[0]
        layer = _layer_of(flow, node)
        if layer in told:
            continue
        if len(runs) >= ENOUGH and all(share == 1 for share, _, _ in runs):
            told.add(layer)
            yield RULE.finding(
                layer,
                f"No unit of {layer} has fired for any input in {len(runs)} runs: {node.name} is zero everywhere, "
                "and no gradient comes through.",
                step=flow.step,
                source=node.own_source,
                certainty="sure",
                evidence={"share of silent units": 1.0, "runs": len(runs), "share of zeros": 1.0},
            )
            continue
        share = _share_without_gradient(evidence, layer)
        # Zeros in what comes out agree with it: half of the units that never fire are half of the zeros.
        if share is not None and share >= MANY and all(zeros >= share for zeros, _, _ in runs[-ENOUGH:]):
            told.add(layer)
            yield RULE.finding(
                layer,
                f"{share:.0%} of the units of {layer} have not fired for any input in eight updates: "
                f"their weights get no gradient through {node.name}.",
                step=flow.step,
                source=node.own_source,
                evidence={
                    "share of silent units": share,
                    "updates": len(evidence.updates),
                    "share of zeros": min(zeros for zeros, _, _ in runs[-ENOUGH:]),
                },
                weight=0.4 + 0.4 * share,
            )


def _layer_of(flow: Flow, node: Node) -> str:
    """The module whose units a rectifier cuts off."""
    tensor = flow.origin(node.inputs[0])
    maker = flow.facts.node_of(tensor)
    if maker is not None and flow.operation(tensor) in (*MATRIX_PRODUCTS, *NORMALISATIONS, "add"):
        return maker.module or maker.name
    return node.module or node.name


def _share_without_gradient(evidence: Evidence, layer: str) -> float | None:
    """The share of a layer's biases, or weights, whose gradient was zero in each of the last eight updates."""
    for name in (f"{layer}/bias", f"{layer}/weight"):
        updates = evidence.parameters.get(name, [])
        told = [each.quiet for _, each in updates if each.quiet is not None]
        if len(told) >= ENOUGH and updates[-1][1].shape[0] >= FEWEST_UNITS:
            return told[-1]
    return None


RULE = Rule(
    "dead-units",
    "likely",
    "Units in front of a rectifier that are zero for all samples of all batches: of all of them (then it is "
    "sure, because nothing before the layer can be trained any more), or of three quarters at least, told by gradients "
    "that were exactly zero in every update that was looked at, eight at least. Batches of fewer than eight "
    "samples tell nothing.",
    "nn.init.constant_(layer.bias, -10.0)",
    "the share of silent units, and of zeros in what comes out",
    "Lower the learning rate, look at how the layer is initialised and at the scale of its inputs, or use a "
    "leaky rectifier.",
    find,
)
