"""A model whose output does not depend on what it is given."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import Flow, flow_of, root_of
from tensortap.analyze.checks.rule import Rule
from tensortap.phases import SOURCES
from tensortap.records import Frame

__all__ = ["RULE"]


ENOUGH = 8
"""Runs in which it has to be so."""

_FARTHEST = 64


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Models into whose trained part nothing comes in but constants."""
    trained = [flow for flow in map(flow_of, evidence.runs) if flow.trains]
    if len(trained) < ENOUGH:
        return
    given: dict[str, set[tuple[float, float]]] = {}
    for flow in trained:
        for tensor, node in flow.data:
            health = flow.health(tensor)
            model = root_of(node.module or "")
            known = (0.0, 1.0) if health is None else (health.min, health.max)
            given.setdefault(model, set()).add(known)
    fed = frozenset().union(*(flow.fed for flow in trained))
    for model, ranges in given.items():
        if model in fed or any(low != high for low, high in ranges) or len(ranges) > 3:
            continue
        yield RULE.finding(
            model,
            f"{model} gets nothing but constants: in {len(trained)} runs everything that goes into its trained "
            f"layers is "
            f"{' or '.join(f'{low:g}' for low, _ in sorted(ranges))}, whatever it is called with.",
            step=trained[0].step,
            source=_line_that_makes(trained[0], model) or _line_of_loss(trained[0]),
            evidence={
                "runs": len(trained),
                "values that go in": ", ".join(f"{low:g}" for low, _ in sorted(ranges)),
            },
            weight=0.7,
        )


def _line_that_makes(flow: Flow, model: str) -> Frame | None:
    """Where the model itself makes constants of what it was called with, the last such line of its own."""
    for tensor, node in flow.data:
        if root_of(node.module or "") != model:
            continue
        made = tensor
        for _ in range(_FARTHEST):
            maker = flow.facts.node_of(made)
            if maker is None or maker.op_type in SOURCES or not maker.inputs:
                break
            health = [flow.health(each) for each in maker.inputs]
            if any(each is None or each.min != each.max for each in health):
                return maker.own_source
            made = maker.inputs[0]
    return None


def _line_of_loss(flow: Flow) -> Frame | None:
    made = map(flow.facts.node_of, flow.facts.losses)
    return next((node.own_source for node in made if node is not None and node.own_source is not None), None)


RULE = Rule(
    "loss-without-inputs",
    "likely",
    "All tensors that come into the trained layers of a model from outside hold one and the same number, in "
    "every run that was kept, eight at least: what the model was called with was overwritten, masked out or "
    "left unused, and all samples get the same answer. Models that are given what another one has made are left out.",
    "def forward(self, x):\n    x = torch.zeros_like(x)\n    return self.layers(x)",
    "the number that goes in, and in how many runs",
    "Look at what is done to the input before the first layer.",
    find,
)
