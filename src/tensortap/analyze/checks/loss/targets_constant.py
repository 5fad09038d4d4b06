"""Targets that are always the same."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import Flow, flow_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


_LOSSES = ("nll_loss", "picked_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy")
ENOUGH = 8
"""Runs in which it has to be so."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Losses of classes whose targets come from data and hold one number."""
    told: dict[str, list[tuple[Flow, float, float, float]]] = {}
    meant = set()
    for flow in map(flow_of, evidence.runs):
        for node in flow.nodes(*_LOSSES):
            if not flow.is_trained(node) or len(node.inputs) < 2:
                continue
            health = flow.health(node.inputs[1])
            if health is None or not health.elements or _is_made(flow, node.inputs[1]):
                meant.add(node.name)
                continue
            told.setdefault(node.name, []).append((flow, health.min, health.max, health.elements))
    constants = {low for each in told.values() for _, low, high, _ in each if low == high}
    for name, runs in told.items():
        values = {each for _, low, high, _ in runs for each in (low, high)}
        targets = sum(count for _, _, _, count in runs)
        if (
            name in meant
            or len(runs) < ENOUGH
            or len(values) > 1
            or len(constants) > 1
            or targets < 4 * ENOUGH
        ):
            continue
        flow = runs[0][0]
        node = flow.facts.nodes[name]
        (value,) = values
        yield RULE.finding(
            name,
            f"All targets of {name} are {value:g}, in all {len(runs)} runs: there is nothing to tell apart.",
            step=flow.step,
            source=node.own_source,
            evidence={"target": value, "targets seen": int(targets), "runs": len(runs)},
            weight=0.6,
        )


def _is_made(flow: Flow, tensor: str) -> bool:
    """Whether the program makes targets itself, as those of a GAN or a contrastive loss."""
    node = flow.facts.node_of(flow.origin(tensor))
    if node is None:
        return True
    operation = flow.facts.operation(node)
    return operation.is_value_free or operation.overwrites


RULE = Rule(
    "targets-constant",
    "likely",
    "The targets of a cross entropy come from data, and hold one and the same number in every run that was "
    "kept, eight at least. Targets that the program makes itself (ones and zeros of a GAN, column 0 of a "
    "contrastive loss) are left alone, and so are programs whose losses have different constants.",
    "labels = torch.tensor([classes.get(name, 0) for name in names])  # no name is found",
    "the number, and how many targets were seen",
    "Look at how labels are read: names that are not found, a cast that cuts off, a column that is not the "
    "label.",
    find,
)
