"""Gradients that are clipped while they are scaled."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule
from tensortap.records import Event, Update

__all__ = ["RULE"]

ENOUGH = 2


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers whose gradients are clipped before a scaler has unscaled them."""
    for optimizer, updates in evidence.optimizers.items():
        found = [(update, clipping) for update in updates if (clipping := _early_clipping(update))]
        if len(found) < max(ENOUGH, len(updates) - 1):
            continue
        update, clipping = found[0]
        called = update.variable or optimizer
        yield RULE.finding(
            called,
            f"The gradients of {called} are clipped before they are unscaled: the limit is meant for "
            "gradients that are thousands of times smaller.",
            step=update.step,
            source=clipping.source,
            weight=0.85,
            evidence={
                "updates looked at": len(updates),
                "of those with a clipping before unscaling": len(found),
            },
        )


def _early_clipping(update: Update) -> Event | None:
    early: Event | None = None
    for event in update.events:
        if event.what == "backward":
            early = None
        elif event.what == "clip" and event.who in ("", update.optimizer):
            early = event
        elif event.what == "unscale" and event.who == update.optimizer:
            return early
    return None


RULE = Rule(
    "clipped-before-unscale",
    "sure",
    "Between the backward pass and the moment at which an active gradient scaler unscales the gradients of "
    "an optimizer (in `unscale_`, else in `scaler.step`), they are clipped: by a limit for gradients that "
    "are not scaled.",
    "scaler.scale(loss).backward()\nclip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)",
    "in how many updates they were clipped before unscaling",
    "Call scaler.unscale_(optimizer) before clipping.",
    find,
)
