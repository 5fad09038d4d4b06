"""Learning rates that rise by orders of magnitude."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule
from tensortap.analyze.checks.updates.rates import rates_of, setter_of

__all__ = ["RULE"]

JUMP = 8.0
"""Times the largest rate so far, from one step to the next."""

WARM = 1e-5
"""Rates below are those of a warm-up, which may jump."""

GROWTH, LARGE = 1000.0, 0.5
"""In all, to a rate that is large for any optimizer."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers whose learning rate rises far above what it was."""
    for called, updates, rates in rates_of(evidence):
        peak = 0.0
        for place, (update, rate) in enumerate(zip(updates, rates, strict=True)):
            jumps = (
                place
                and peak >= WARM
                and rate >= JUMP * peak
                and update.count == updates[place - 1].count + 1
            )
            grows = rates[0] > 0 and rate >= GROWTH * rates[0] and rate >= LARGE
            if jumps or grows:
                yield RULE.finding(
                    called,
                    f"The learning rate of {called} rises from {peak if jumps else rates[0]:.3g} to {rate:.3g}"
                    f"{' in one step' if jumps else ''}.",
                    step=update.step,
                    source=setter_of(evidence, updates[: place + 1]),
                    weight=0.7,
                    evidence={
                        "learning rate before": rates[place - 1] if place else rates[0],
                        "learning rate": rate,
                        "first learning rate": rates[0],
                        "steps": update.count + 1,
                    },
                )
                break
            peak = max(peak, rate)


RULE = Rule(
    "learning-rate-jumps",
    "likely",
    "The learning rate of an optimizer rises from one step to the next to eight times the largest it ever "
    "was, or in all to a thousand times its first value and to one that is large for any optimizer. Left "
    "alone are warm-ups from very small rates, and restarts, which come back to a rate that has been.",
    "scheduler = ExponentialLR(optimizer, gamma=10)  # 0.1 was meant",
    "the learning rate before and after, and the first one",
    "Look at the factor of the schedule, and at code that writes group['lr'].",
    find,
)
