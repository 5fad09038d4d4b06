"""Probabilities where a loss wants scores."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import flow_of, place_of
from tensortap.analyze.checks.rule import Rule
from tensortap.records import Node

__all__ = ["RULE"]


_PICKS = ("nll_loss", "picked_loss")


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Logarithms of softmax that are taken of what a softmax returned."""
    seen = set()
    # What is trained matters most: an evaluation may come before it.
    for flow in sorted(map(flow_of, evidence.runs), key=lambda flow: not flow.trains):
        run = flow.facts
        for node in flow.nodes("log_softmax", "cross_entropy"):
            if _key(node) in seen or not node.inputs:
                continue
            made = flow.origin(node.inputs[0])
            if flow.operation(made) != "softmax":
                continue
            if not flow.is_trained(node) and flow.reaches(node.tensor(), _PICKS, ()) is None:
                continue
            seen.add(_key(node))
            health = flow.health(made)
            maker = run.node_of(made)
            yield RULE.finding(
                node.name,
                f"{node.name} takes the softmax of probabilities: its input is what the softmax {made} at "
                f"{place_of(maker.own_source if maker else None)} returned.",
                step=flow.step,
                source=node.own_source,
                evidence={
                    "smallest given": None if health is None else health.min,
                    "largest given": None if health is None else health.max,
                    "softmax before it": made,
                },
            )


def _key(node: Node) -> object:
    return node.own_source or node.name


RULE = Rule(
    "softmax-twice",
    "sure",
    "A log-softmax whose result is trained, or goes into a negative log-likelihood, is given what a softmax "
    "returned, at most reshaped, cast or copied in between. Probabilities differ by 1 at most, so that the "
    "loss can hardly fall, and gradients are small. A log-softmax of a log-softmax changes nothing and is "
    "left alone.",
    "model = nn.Sequential(nn.Linear(8, 4), nn.Softmax(dim=1))\nloss = nn.CrossEntropyLoss()(model(x), y)",
    "the smallest and largest number that the second softmax was given",
    "Leave the softmax out of the model: cross entropy wants scores. Apply it only where probabilities are "
    "read.",
    find,
)
