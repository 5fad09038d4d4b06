"""Gradients that are applied again."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]

ENOUGH = 2
"""Updates in which it has to be so."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers whose parameters have gradients that were applied before."""
    for optimizer, updates in evidence.optimizers.items():
        stale = []
        for update in updates:
            own = [each for each in update.parameters if optimizer in each.held and each.gradient is not None]
            known = [each for each in own if each.is_stale is not None]
            if known and not update.has_closure and 2 * sum(map(_is_stale, known)) > len(known):
                stale.append((update, known))
        if len(stale) < ENOUGH:
            continue
        update = stale[0][0]
        at_last = stale[-1][1]
        clears = any(event.what == "clear" for each in updates for event in each.events)
        yield RULE.finding(
            update.variable or optimizer,
            f"{update.variable or optimizer} applies gradients again: nothing clears them between its steps"
            + (", although something else is cleared." if clears else "."),
            step=update.step,
            source=update.source,
            evidence={
                "parameters whose gradient was not cleared": sum(map(_is_stale, at_last)),
                "parameters with a gradient": len(at_last),
                "updates looked at": len(updates),
                "of those with gradients applied before": len(stale),
            },
        )


def _is_stale(parameter: object) -> bool:
    return bool(getattr(parameter, "is_stale", False))


RULE = Rule(
    "gradients-not-cleared",
    "sure",
    "An optimizer steps with gradients that hold what an earlier step of it has applied already, in at least two "
    "updates: nothing has taken them away, replaced or changed them in between but backward passes. Gradients that "
    "are accumulated over several backward passes before one step are not meant by it, nor steps with a closure.",
    "for x, y in loader:\n    loss = loss_fn(model(x), y)\n    loss.backward()\n    optimizer.step()",
    "how many gradients were not cleared, and in how many updates",
    "Call zero_grad() on the optimizer before each backward pass, or after each step.",
    find,
)
