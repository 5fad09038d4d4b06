"""A softmax over the samples of a batch instead of the classes."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import flow_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


_PICKS = ("nll_loss", "picked_loss")
_BETWEEN = ("add", "clamp", "clamp_min")


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Softmaxes along the first dimension whose results are read along the second."""
    seen = set()
    for run in evidence.runs:
        flow = flow_of(run)
        for node in flow.nodes("log_softmax", "softmax"):
            shape = flow.shape(node.tensor())
            if node.name in seen or not flow.is_trained(node) or shape is None:
                continue
            if (
                node.attributes.get("dim") not in (0, -2)
                or len(shape) != 2
                or shape[1] == 1
                or shape[0] == shape[1]
            ):
                continue
            logarithm = run.operation(node).name == "log_softmax"
            picked = logarithm and any(
                run.operation(taker).name in _PICKS and place == 0
                for taker, place in flow.takers(node.tensor())
            )
            scores = flow.operation(flow.origin(node.inputs[0])) == "addmm"
            if not picked and not (scores and (logarithm or flow.reaches(node.tensor(), ["log"], _BETWEEN))):
                continue
            seen.add(node.name)
            health = flow.health(node.tensor())
            yield RULE.finding(
                node.name,
                f"{node.name} normalises over the {shape[0]} samples of a batch, not over its {shape[1]} columns"
                + (", and the loss picks a column for each sample." if picked else "."),
                step=flow.step,
                source=node.own_source,
                certainty="sure" if picked else "likely",
                evidence={
                    "dimension": node.attributes.get("dim"),
                    "shape": str(shape),
                    "mean": None if health is None else health.mean,
                },
                weight=0.8,
            )


RULE = Rule(
    "softmax-over-batch",
    "sure",
    "A log-softmax along the first dimension of a matrix goes into a negative log-likelihood, which picks a "
    "class along the second: the program contradicts itself about which is which. A softmax of a layer's "
    "output along the first dimension, whose logarithm is trained, is likely the same. Square matrices, as "
    "contrastive losses have, and weights of an attention or a pooling, which are multiplied and not taken "
    "the logarithm of, are left alone.",
    "probabilities = F.log_softmax(model(x), dim=0)\nloss = F.nll_loss(probabilities, y)",
    "the dimension and the shape",
    "Use dim=1, or dim=-1.",
    find,
)
