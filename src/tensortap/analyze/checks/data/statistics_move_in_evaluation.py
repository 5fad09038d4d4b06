"""Running statistics that learn from what is only evaluated."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import Flow, flow_of, root_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


from tensortap.records import Node

ENOUGH = 2
"""Runs in which it has to be so."""

_JUDGES = (
    "nll_loss",
    "picked_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "argmax",
    "eq",
)


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Normalisations that update their statistics in runs that train nothing."""
    found: dict[str, list[tuple[Flow, Node, str]]] = {}
    trained: set[str] = set()
    for run in evidence.runs:
        flow = flow_of(run)
        if flow.trains:
            trained |= flow.models
            continue
        judged = any(flow.by_operation.get(each) for each in _JUDGES)
        for node in flow.nodes("batch_norm"):
            mode = run.circumstances.modes.get(root_of(node.module or ""))
            if node.attributes.get("training") is not True or max(node.writes, default=-1) < 0:
                continue
            if mode == "evaluation" or (mode == "training" and judged):
                found.setdefault(root_of(node.module or ""), []).append((flow, node, mode))
    for model, cases in found.items():
        flow, node, mode = cases[0]
        runs = {id(each) for each, _, _ in cases}
        if model not in trained or len(runs) < ENOUGH:
            continue
        yield RULE.finding(
            node.module or node.name,
            f"{node.name} updates its running statistics in runs that train nothing, "
            + (
                f"although {model} is in evaluation mode."
                if mode == "evaluation"
                else f"because {model} is evaluated in training mode."
            ),
            step=flow.step,
            source=node.own_source,
            evidence={
                "runs": len(runs),
                "normalisations": len({each.name for _, each, _ in cases}),
                "mode": mode,
            },
            weight=0.8 if mode == "evaluation" else 0.6,
        )


RULE = Rule(
    "statistics-move-in-evaluation",
    "likely",
    "BatchNorm updates its running statistics in runs without gradients, two at least: although the model is "
    "in evaluation mode, or because it is in training mode while a loss or accuracy is worked out from what "
    "it returns. Runs that only pass data through in training mode, as those that work the statistics out "
    "anew, are left alone.",
    "with torch.no_grad():\n    for x, y in validation:\n        total += loss_fn(model(x), y)  # no model.eval()",
    "in how many runs, and the mode of the model",
    "Call model.eval() before evaluation and model.train() after it; give F.batch_norm "
    "training=self.training.",
    find,
)
