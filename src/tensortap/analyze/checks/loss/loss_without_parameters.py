"""A backward pass that leads to no parameter."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import place_of, root_of
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


ENOUGH = 2
"""Updates in which it has to be so."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers that step after backward passes, and never have a gradient."""
    for optimizer, updates in evidence.optimizers.items():
        if len(updates) < ENOUGH or any(each.has_closure for each in updates):
            continue
        sources = []
        for update in updates:
            backward = [event for event in update.events if event.what == "backward"]
            cleared = [event for event in update.events if event.what == "clear"]
            if not backward or (
                cleared and update.events.index(cleared[-1]) > update.events.index(backward[0])
            ):
                break
            sources.append(backward[-1].source)
        if len(sources) < len(updates):
            continue
        trained = [each for update in updates for each in update.parameters if each.trains]
        if not trained or any(each.gradient is not None or each.is_reached is not False for each in trained):
            continue
        if any(update.strays for update in updates):
            continue
        roots = {root_of(each.name) for each in trained}
        yield RULE.finding(
            roots.pop() if len(roots) == 1 else updates[0].variable or optimizer,
            f"The backward pass at {place_of(sources[0])} leads to none of the {len({each.name for each in trained})} "
            "parameters: the loss does not depend on them any more.",
            step=updates[0].step,
            source=sources[0],
            evidence={
                "parameters": len({each.name for each in trained}),
                "with a gradient": 0,
                "updates looked at": len(updates),
            },
        )


RULE = Rule(
    "loss-without-parameters",
    "sure",
    "An optimizer steps after backward passes, and in no update does any trainable parameter, or other "
    "tensor, get a gradient: the loss was made of values (of predicted classes, of .data, of .item(), by a "
    "new tensor) and told to require gradients itself.",
    "loss = (model(x).argmax(1) != y).float().mean().requires_grad_()\nloss.backward()",
    "how many parameters there are, and that none has a gradient",
    "Work the loss out from what the model returns, by operations that have derivatives; never set "
    "requires_grad on it.",
    find,
    hides=(
        "cut-from-loss",
        "never-gets-gradient",
        "step-without-backward",
        "cleared-before-step",
        "not-in-optimizer",
    ),
)
