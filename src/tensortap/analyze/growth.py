"""Whether numbers had been growing over the runs before they became too large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensortap.analyze.findings import Finding
from tensortap.analyze.health import number_text
from tensortap.analyze.ops import SOURCES
from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts
    from tensortap.reader import SessionDir

__all__ = ["Growth", "growth_of", "learning_rate"]

ENOUGH_RUNS = 3
ENOUGH_FACTOR = 100.0
"""Less than this is what healthy training does to a tensor now and then."""

_CAUSES = (
    "overflow",
    "exp-overflow",
    "cast-overflow",
    "expm1-overflow",
    "infinity-minus-infinity",
    "unknown",
)


class Growth(NamedTuple):
    """A tensor that has grown, run after run."""

    tensor: str
    sentence: str
    advice: str


def growth_of(session: SessionDir, finding: Finding, facts: RunFacts | None = None) -> Growth | None:
    """What has been growing before a finding that has to do with numbers too large; None if nothing has."""
    if finding.cause.kind not in _CAUSES:
        return None
    best: tuple[float, str, Any] | None = None
    for tensor in _candidates(finding, facts):
        try:
            history = session.history(tensor)
        except (OSError, ValueError):
            continue
        history = history[(history["task"] == finding.rank) & (history["run"] <= finding.run)]
        sizes = np.maximum(np.abs(history["min"]), np.abs(history["max"]))
        known = np.isfinite(sizes) & (sizes > 0)
        runs, sizes = history["run"][known], sizes[known]
        if len(sizes) < ENOUGH_RUNS or sizes[-1] < ENOUGH_FACTOR * sizes[0] or sizes[-1] < sizes.max() / 10:
            continue
        factor = float(sizes[-1] / sizes[0])
        if best is None or factor > best[0]:
            best = (factor, tensor, (runs, sizes))
    if best is None:
        return None
    factor, tensor, (runs, sizes) = best
    per_run = factor ** (1 / max(int(runs[-1] - runs[0]), 1))
    rate = None if facts is None else learning_rate(facts)
    said = "" if rate is None else f" (it is {number_text(rate)})"
    return Growth(
        tensor,
        f"It had been growing: {tensor} went from {number_text(float(sizes[0]))} in run {int(runs[0])} to "
        f"{number_text(float(sizes[-1]))} in run {int(runs[-1])}, about ×{number_text(round(per_run, 1))} per run, as "
        "happens when updates are too large.",
        f"Lower the learning rate{said}, warm it up, or clip the gradients.",
    )


def _candidates(finding: Finding, facts: RunFacts | None) -> list[str]:
    """Parameters behind the finding, then what the node was given."""
    names = [each.tensor for each in finding.inputs]
    if facts is None:
        return names
    found: list[str] = []
    pending = list(finding.node.inputs)
    seen: set[str] = set()
    while pending and len(seen) < 200:
        tensor = pending.pop(0)
        node = facts.node_of(tensor)
        if node is None or tensor in seen:
            continue
        seen.add(tensor)
        if node.op_type in SOURCES:
            if node.op_type.startswith("Var"):
                found.append(tensor)
        else:
            pending += node.inputs
    return found[:8] + names


def learning_rate(facts: RunFacts) -> float | None:
    """The learning rate, where the optimizer's operations show it; None otherwise."""
    for name in facts.nodes:
        if name.startswith("optimizer/"):
            rate = _rate(facts.nodes[name])
            if rate is not None:
                return rate
    return None


def _rate(node: Node) -> float | None:
    value = node.attributes.get("alpha") if node.op_type.endswith(("::add_", "::_foreach_add_")) else None
    value = node.attributes.get("lr", value)
    if isinstance(value, float) and value and "SGD" in node.name:
        return abs(value)
    return None
