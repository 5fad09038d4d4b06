"""Gradient scalers that leave out every step."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]

ENOUGH = 10
"""Steps: a scaler halves its scale with each that it leaves out, until it has found one that will do."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers none of whose steps were taken."""
    for optimizer, updates in evidence.optimizers.items():
        if len(updates) < ENOUGH or not all(update.is_skipped for update in updates):
            continue
        last = updates[-1]
        called = last.variable or optimizer
        yield RULE.finding(
            called,
            f"The gradient scaler has left out every step of {called} so far: no parameter has changed.",
            step=updates[0].step,
            source=last.source,
            weight=0.9,
            evidence={
                "steps": last.count + 1,
                "steps left out, of those looked at": len(updates),
                "steps taken": 0,
            },
        )


RULE = Rule(
    "scaler-skips-every-step",
    "sure",
    "A gradient scaler has left out each of the first ten and more steps of an optimizer, because "
    "gradients were not finite. A few at the beginning are usual: with each the scale is halved.",
    "scaler = GradScaler(init_scale=2.0**40, growth_interval=1)\n...\nscaler.step(optimizer)",
    "how many steps were asked for, and how many were taken",
    "Look at what makes gradients infinite (tensortap why), call scaler.update() after each step, and "
    "begin with a smaller scale.",
    find,
)
