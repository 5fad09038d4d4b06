"""Gradients that are clipped when they have been applied."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule
from tensortap.records import Event, Update

__all__ = ["RULE"]

ENOUGH = 2


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers whose gradients are clipped after each step, and never before."""
    for optimizer, updates in evidence.optimizers.items():
        later = [update for update in updates if update.count]
        found = [(update, clipping) for update in later if (clipping := _late_clipping(update))]
        if len(found) < max(ENOUGH, len(later) - 1):
            continue
        update, clipping = found[0]
        called = update.variable or optimizer
        yield RULE.finding(
            called,
            f"The gradients of {called} are clipped after its step, when they have been applied already.",
            step=max(update.step - 1, 0),
            source=clipping.source,
            weight=0.85,
            evidence={
                "updates looked at": len(later),
                "of those after a clipping that came too late": len(found),
                "of those with a clipping before the step": 0,
            },
        )


def _late_clipping(update: Update) -> Event | None:
    """A clipping of its gradients between the step before and the backward pass, if that is the only one."""
    late: Event | None = None
    has_new = False
    for event in update.events:
        if event.what in ("backward", "gradient"):
            has_new = True
        elif event.what == "clip" and event.who in ("", update.optimizer):
            if has_new:
                return None
            late = event
    return late if has_new and not update.has_closure else None


RULE = Rule(
    "clipped-after-step",
    "sure",
    "After each step of an optimizer and before the next backward pass its gradients are clipped, and they "
    "are not clipped between backward pass and step. A norm that is only measured (an infinite limit) is "
    "no clipping.",
    "loss.backward()\noptimizer.step()\nclip_grad_norm_(model.parameters(), 1.0)",
    "in how many updates the clipping came after the step, and before it",
    "Clip between backward() and step().",
    find,
)
