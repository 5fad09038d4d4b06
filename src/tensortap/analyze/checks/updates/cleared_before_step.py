"""Gradients that are cleared before they are applied."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule
from tensortap.records import Event, Update

__all__ = ["RULE"]

ENOUGH = 2


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers that step after a backward pass and a clearing, and find no gradient."""
    for optimizer, updates in evidence.optimizers.items():
        found = [(update, clearing) for update in updates if (clearing := _clearing(update))]
        if len(found) < max(ENOUGH, len(updates) - 1):
            continue
        update, clearing = found[0]
        called = update.variable or optimizer
        reached = sum(bool(each.is_reached) for each in update.parameters if optimizer in each.held)
        yield RULE.finding(
            called,
            f"Gradients are cleared between the backward pass and the step of {called}, which finds none.",
            step=update.step,
            source=clearing.source,
            weight=0.95,
            evidence={
                "parameters that the loss leads to": reached,
                "of those with a gradient at the step": 0,
                "updates looked at": len(updates),
                "of those without gradients": len(found),
            },
        )


def _clearing(update: Update) -> Event | None:
    """What has cleared the gradients of an update that found none."""
    own = [each for each in update.parameters if update.optimizer in each.held and each.is_reached]
    if update.has_closure or not own or any(each.gradient for each in own):
        return None
    order = [event for event in update.events if event.what in ("backward", "clear")]
    return (
        order[-1]
        if order and order[-1].what == "clear" and any(e.what == "backward" for e in order)
        else None
    )


RULE = Rule(
    "cleared-before-step",
    "sure",
    "Before each step of an optimizer there is a backward pass, and after that something clears the "
    "gradients, so that all parameters which the loss leads to have none, or only zeros, when the step "
    "comes. It has to be so in all updates but one of those that were looked at.",
    "loss.backward()\noptimizer.zero_grad()\noptimizer.step()",
    "how many parameters the loss leads to, and how many of them have a gradient at the step",
    "Clear gradients before the backward pass, or after the step.",
    find,
    hides=("never-gets-gradient",),
)
