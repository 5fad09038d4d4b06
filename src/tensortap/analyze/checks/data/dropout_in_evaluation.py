"""Dropout that goes on in evaluation."""

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


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Operations that drop elements inside models in evaluation mode."""
    runs: dict[str, int] = {}
    first: dict[str, tuple[Flow, Node]] = {}
    for run in evidence.runs:
        flow = flow_of(run)
        still = {model for model, mode in run.circumstances.modes.items() if mode == "evaluation"}
        if flow.trains or not still:
            continue
        for node in _that_drop(flow):
            model = root_of(node.module or "")
            if model in still:
                runs[model] = runs.get(model, 0) + (
                    first.get(model, (flow,))[0] is not flow or model not in first
                )
                first.setdefault(model, (flow, node))
    for model, (flow, node) in first.items():
        if runs[model] < ENOUGH:
            continue
        health = flow.health(node.tensor())
        yield RULE.finding(
            model,
            f"{node.name} drops elements although {model} is in evaluation mode.",
            step=flow.step,
            source=node.own_source,
            evidence={
                "runs in evaluation mode with dropout": runs[model],
                "share that is kept": None
                if health is None or not health.elements
                else health.positive / health.elements,
            },
            weight=0.8,
        )


def _that_drop(flow: Flow) -> Iterator[Node]:
    for node in flow.nodes("native_dropout"):
        yield node
    for node in flow.nodes("bernoulli"):
        # What dropout is made of: chances, divided by the share that is kept, times the input.
        for taker, _ in flow.takers(node.tensor()):
            if (
                flow.facts.operation(taker).name == "div"
                and flow.reaches(taker.tensor(), ["mul"], ()) is not None
            ):
                yield node
                break


RULE = Rule(
    "dropout-in-evaluation",
    "likely",
    "Elements are dropped in a model that is in evaluation mode with all its modules, in two runs without "
    "gradients at least: by a functional dropout that is not told the mode, or by a module in a plain list, "
    "which eval() does not reach. Modules that the program itself puts into training mode inside such a "
    "model, and models that are called in training mode, draw on purpose.",
    "def forward(self, x):\n    return self.out(F.dropout(self.hidden(x), 0.5))",
    "how often, and the share that is kept",
    "Give F.dropout training=self.training, or use nn.Dropout in a ModuleList.",
    find,
)
