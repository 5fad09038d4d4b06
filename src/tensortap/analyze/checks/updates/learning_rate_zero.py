"""Learning rates that are zero."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]

ENOUGH, ENOUGH_SCHEDULED = 2, 10
"""Updates: a schedule may begin at zero."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Optimizers all of whose learning rates have been zero from the beginning."""
    for optimizer, updates in evidence.optimizers.items():
        last = updates[-1]
        enough = ENOUGH if last.schedule is None else ENOUGH_SCHEDULED
        rates = [group.rate for update in updates for group in update.groups]
        if len(updates) < enough or updates[0].count or not rates or any(rate != 0 for rate in rates):
            continue
        called = last.variable or optimizer
        planned = "" if last.schedule is None else ", and its schedule has not changed that"
        yield RULE.finding(
            called,
            f"The learning rate of {called} is 0{planned}: its steps change nothing.",
            step=updates[0].step,
            source=last.schedule or last.made or last.source,
            weight=0.9,
            evidence={
                "learning rate": 0.0,
                "updates looked at": len(updates),
                "groups": len(last.groups),
                "last step looked at": last.step,
            },
        )


RULE = Rule(
    "learning-rate-zero",
    "sure",
    "All learning rates of an optimizer are zero from its first step on: for two updates if it has no "
    "schedule, for ten if it has one, which may warm up from zero. A group of several that has rate zero "
    "is left alone.",
    "config = json.load(open('config.json'))  # 'lr': 0\noptimizer = Adam(model.parameters(), lr=int(config['lr']))",
    "the learning rate, and in how many updates it was zero",
    "Give the optimizer a learning rate; if a schedule is to raise it, call its step().",
    find,
)
