"""Probabilities where a loss wants scores, one by one."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import flow_of, place_of
from tensortap.analyze.checks.rule import Rule
from tensortap.records import Node

__all__ = ["RULE"]


_WANT_SCORES = ("binary_cross_entropy_with_logits", "log_sigmoid_forward", "log_sigmoid")


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Sigmoids, and losses that begin with one, that are given what a sigmoid returned."""
    seen = set()
    for run in evidence.runs:
        flow = flow_of(run)
        for node in flow.nodes(*_WANT_SCORES, "sigmoid"):
            if _key(node) in seen or not node.inputs or not flow.is_trained(node):
                continue
            made = flow.origin(node.inputs[0])
            if flow.operation(made) != "sigmoid":
                continue
            seen.add(_key(node))
            health = flow.health(made)
            maker = run.node_of(made)
            is_loss = run.operation(node).name in _WANT_SCORES
            yield RULE.finding(
                node.name,
                f"{node.name} takes the sigmoid of probabilities: its input is what the sigmoid {made} at "
                f"{place_of(maker.own_source if maker else None)} returned.",
                step=flow.step,
                source=node.own_source,
                certainty="sure" if is_loss else "likely",
                evidence={
                    "smallest given": None if health is None else health.min,
                    "largest given": None if health is None else health.max,
                    "sigmoid before it": made,
                },
                weight=0.8,
            )


def _key(node: Node) -> object:
    return node.own_source or node.name


RULE = Rule(
    "sigmoid-twice",
    "sure",
    "A loss that applies a sigmoid itself (binary cross entropy with logits, the logarithm of a sigmoid) is "
    "trained on what a sigmoid returned, at most reshaped, cast or copied in between: no output can be below "
    "one half then. A sigmoid of a sigmoid outside of a loss is likely a mistake.",
    "model = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())\nloss = nn.BCEWithLogitsLoss()(model(x), y)",
    "the smallest and largest number that the second sigmoid was given",
    "Leave one of the two out: BCEWithLogitsLoss wants scores, BCELoss wants probabilities.",
    find,
)
