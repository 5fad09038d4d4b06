"""Scores or probabilities where a loss wants their logarithms."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import MATRIX_PRODUCTS, Flow, flow_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


from tensortap.records import Node

_PICKS = ("nll_loss", "picked_loss")
ABOVE = 0.05
"""A logarithm of a probability is never above zero; what is a little above may come from an epsilon."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Losses over log-probabilities that are given positive numbers."""
    seen = set()
    for run in evidence.runs:
        flow = flow_of(run)
        for node, given in (*_picking(flow), *_diverging(flow)):
            health = flow.health(given)
            if node.name in seen or not flow.is_trained(node):
                continue
            if health is None or not health.max > ABOVE:
                continue
            seen.add(node.name)
            made = flow.origin(given)
            maker = flow.operation(made)
            what = "probabilities, which a softmax returned" if maker == "softmax" else "numbers above zero"
            yield RULE.finding(
                node.name,
                f"{node.name} wants logarithms of probabilities, which are never above zero, and is given {what} "
                f"({made}).",
                step=flow.step,
                source=node.own_source,
                certainty="sure" if maker == "softmax" or maker in MATRIX_PRODUCTS else "likely",
                evidence={
                    "smallest given": health.min,
                    "largest given": health.max,
                    "above zero": int(health.positive),
                    "elements": int(health.elements),
                },
                weight=0.7,
            )


def _picking(flow: Flow) -> Iterator[tuple[Node, str]]:
    for node in flow.nodes(*_PICKS):
        yield node, node.inputs[0]


def _diverging(flow: Flow) -> Iterator[tuple[Node, str]]:
    """Divergences, as they are executed: p·log p − p·given."""
    for node in flow.nodes("xlogy"):
        if len(node.inputs) != 2 or node.inputs[0] != node.inputs[1]:
            continue
        for subtraction, place in flow.takers(node.tensor()):
            if flow.facts.operation(subtraction).name != "sub" or place != 0 or len(subtraction.inputs) < 2:
                continue
            product = flow.facts.node_of(subtraction.inputs[1])
            if product is None or flow.facts.operation(product).name != "mul" or len(product.inputs) != 2:
                continue
            if node.inputs[0] in product.inputs:
                yield product, product.inputs[1 - product.inputs.index(node.inputs[0])]


RULE = Rule(
    "logits-as-log-probabilities",
    "sure",
    "A loss that wants logarithms of probabilities (negative log-likelihood, Kullback-Leibler divergence) is "
    "trained on numbers above zero, which no such logarithm is: scores as a layer returns them, or "
    "probabilities of a softmax. If they come from somewhere else, as from a loss that only uses it to pick "
    "elements, it is likely.",
    "loss = F.nll_loss(model(x), y)  # model ends in nn.Linear",
    "the smallest and largest number given, and how many are above zero",
    "Give it log_softmax of the scores, or use cross_entropy, which takes the scores themselves.",
    find,
)
