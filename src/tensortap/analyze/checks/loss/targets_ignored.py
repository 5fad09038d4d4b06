"""A loss over nothing: all targets are those that are to be ignored."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import Flow, flow_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


_PICKS = ("nll_loss", "picked_loss")
ENOUGH = 3
"""Runs in which it has to be so."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Losses whose targets were all ignored in every run."""
    weights: dict[str, list[tuple[Flow, float | None]]] = {}
    for flow in map(flow_of, evidence.runs):
        for node in flow.nodes(*_PICKS):
            health = flow.health(node.tensor(1)) if len(node.outputs) > 1 else None
            weights.setdefault(node.name, []).append((flow, None if health is None else health.max))
    for name, told in weights.items():
        if len(told) < ENOUGH or any(weight != 0 for _, weight in told):
            continue
        flow = told[0][0]
        node = flow.facts.nodes[name]
        targets = flow.shape(node.inputs[1]) or ()
        yield RULE.finding(
            name,
            f"{name} has nothing to learn from: in all {len(told)} runs every target is "
            f"{node.attributes.get('ignore_index', 'one')}, which is ignored.",
            step=flow.step,
            source=node.own_source,
            evidence={"runs": len(told), "targets in one": str(targets), "of those that count": 0},
        )


RULE = Rule(
    "targets-ignored",
    "sure",
    "The weights of all targets of a cross entropy add up to zero, in every run that was kept, three at "
    "least: each of them is the number that is to be ignored.",
    "labels = tokens.masked_fill(tokens != padding, -100)  # upside down\nloss = F.cross_entropy(logits, labels)",
    "the number of targets, and that none counts",
    "Look at how the labels are masked: usually the mask is upside down, or the prompt is counted too long.",
    find,
    hides=("targets-constant",),
)
