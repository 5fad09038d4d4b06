"""Gradients that are applied more than once."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule
from tensortap.analyze.checks.updates.idle_steps import idle_steps

__all__ = ["RULE"]


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers that step twice for one backward pass."""
    for idle in idle_steps(evidence):
        if idle.share > 0.5 or not idle.has_gradients:
            continue
        update = idle.updates[0]
        yield RULE.finding(
            idle.called,
            f"{idle.called} steps twice for one backward pass, and applies the same gradients twice.",
            step=update.step,
            source=update.source,
            weight=0.9,
            evidence=idle.evidence,
        )


RULE = Rule(
    "stepped-twice",
    "sure",
    "Some steps of an optimizer, at least two and at most half of those looked at, have no backward pass "
    "since its step before, and apply the same gradients as that. Left alone is what "
    "`step-without-backward` leaves alone.",
    "loss.backward()\nfor term in losses:\n    optimizer.step()",
    "in how many updates there was no backward pass",
    "Call step() once for each backward pass.",
    find,
)
