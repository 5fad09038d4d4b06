"""Learning rates that came to nothing."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule
from tensortap.analyze.checks.updates.rates import rates_of, setter_of

__all__ = ["RULE"]

NOTHING = 1e-4
"""Of the largest rate so far: updates that small change nothing that shows."""

ENOUGH_STEPS, ENOUGH_SHARE = 8, 0.25
"""A plan may end at zero; a program that goes on for so many steps, and so much of its steps, has not ended there."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers that go on with a learning rate of nearly zero."""
    for called, updates, rates in rates_of(evidence):
        peak = max(rates)
        if not peak or rates[-1] > NOTHING * peak:
            continue
        since = next(place for place in range(len(rates)) if max(rates[place:]) <= NOTHING * peak)
        first, last = updates[since], updates[-1]
        steps = last.count - first.count + 1
        if since == 0 or steps < max(ENOUGH_STEPS, ENOUGH_SHARE * (last.count + 1)):
            continue
        yield RULE.finding(
            called,
            f"The learning rate of {called} went from {peak:.3g} to {rates[-1]:.3g}, and training goes on with it.",
            step=first.step,
            source=setter_of(evidence, updates[: since + 1]),
            weight=0.7,
            evidence={
                "largest learning rate": peak,
                "learning rate now": rates[-1],
                "steps since": steps,
                "steps in all": last.count + 1,
            },
        )


RULE = Rule(
    "learning-rate-vanished",
    "likely",
    "The learning rate of an optimizer has fallen to less than a ten-thousandth of what it was, and the "
    "program has gone on with it for at least eight steps that are a quarter of all its steps: as when a "
    "schedule meant for epochs is told of every batch. A plan that ends near zero is left alone.",
    "scheduler = StepLR(optimizer, step_size=30, gamma=0.1)  # epochs\n"
    "for x, y in loader:\n"
    "    ...\n"
    "    scheduler.step()",
    "the largest learning rate, that of now, and for how many steps it has been so",
    "Call scheduler.step() once per epoch, or plan it in steps.",
    find,
)
