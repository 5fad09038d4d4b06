"""Steps for which no gradients were worked out."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule
from tensortap.analyze.checks.updates.idle_steps import idle_steps

__all__ = ["RULE"]


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers most of whose steps have nothing new to apply."""
    for idle in idle_steps(evidence):
        if idle.share <= 0.5:
            continue
        update = idle.updates[0]
        yield RULE.finding(
            idle.called,
            f"{idle.called} steps without a backward pass since its step before: "
            + (
                "it applies the same gradients again."
                if idle.has_gradients
                else "there are no gradients to apply."
            ),
            step=update.step,
            source=update.source,
            weight=0.9,
            evidence=idle.evidence,
        )


RULE = Rule(
    "step-without-backward",
    "sure",
    "More than half of the steps of an optimizer that were looked at have no backward pass since its step "
    "before, and find no gradients, or the same ones as then. Left alone are steps with a closure, "
    "gradients from torch.autograd.grad, and gradients that the program puts in place itself, which differ "
    "from step to step.",
    "loss = loss_fn(model(x), y)\noptimizer.zero_grad()\noptimizer.step()",
    "in how many updates there was no backward pass, and how many parameters had a gradient",
    "Call backward() on the loss before each step.",
    find,
)
