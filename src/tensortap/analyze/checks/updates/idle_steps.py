"""Steps that have nothing new to apply, as the rules about them see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensortap.analyze.checks.evidence import Evidence
from tensortap.records import Update

__all__ = ["IdleSteps", "idle_steps"]

ENOUGH = 2


@dataclass(frozen=True)
class IdleSteps:
    """The steps of one optimizer that had no backward pass since the one before.

    Attributes:
        called: the optimizer.
        updates: they.
        share: of all its steps that were looked at.
        has_gradients: whether there were gradients, which had been applied before.
    """

    called: str
    updates: tuple[Update, ...]
    share: float
    has_gradients: bool
    looked_at: int

    @property
    def evidence(self) -> dict[str, Any]:
        """In numbers."""
        own = [each for each in self.updates[-1].parameters if self.updates[-1].optimizer in each.held]
        return {
            "updates looked at": self.looked_at,
            "of those without a backward pass": len(self.updates),
            "parameters": len(own),
            "of those with a gradient": sum(each.gradient is not None for each in own),
        }


def idle_steps(evidence: Evidence) -> Iterator[IdleSteps]:
    """Such steps of each optimizer that has at least two of them."""
    for optimizer, updates in evidence.optimizers.items():
        idle = []
        before: Update | None = None
        for update in updates:
            follows = before is not None and update.count == before.count + 1
            if _has_no_backward(update) and (
                update.count == 0 or (follows and _has_nothing_new(update, before))
            ):
                idle.append(update)
            before = update
        if len(idle) >= ENOUGH and updates[0].count == 0:
            gradients = [
                any(each.gradient for each in update.parameters if optimizer in each.held) for update in idle
            ]
            known = [update for update in updates if not update.has_closure]
            called = updates[-1].variable or optimizer
            yield IdleSteps(
                called, tuple(idle), len(idle) / max(len(known), 1), all(gradients[1:]), len(known)
            )


def _has_no_backward(update: Update) -> bool:
    led = {event.what for event in update.events}
    return (
        not update.has_closure and not update.is_skipped and bool(led) and not led & {"backward", "gradient"}
    )


def _has_nothing_new(update: Update, before: Update | None) -> bool:
    """Whether all gradients are those of the update before, or there are none."""
    earlier = {} if before is None else {each.name: each for each in before.parameters}
    for each in update.parameters:
        if update.optimizer not in each.held:
            continue
        then = earlier.get(each.name)
        if then is None or (each.gradient, each.nonzero) != (then.gradient, then.nonzero):
            return False
    return True
