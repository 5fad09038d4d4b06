"""Teachers, targets and averages that an optimizer trains."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule
from tensortap.analyze.checks.updates.copies import copies_in, is_overwritten

__all__ = ["RULE"]

ENOUGH = 3


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Copies that are overwritten by what they are copies of, and trained besides."""
    for copies in copies_in(evidence):
        names = [f"{copies.other}/{name}" for name in copies.names]
        histories = [evidence.parameters[name] for name in names]
        trained = [
            [(update, each) for update, each in history if each.held and each.gradient and each.changed]
            for history in histories
        ]
        first = next((told for told in trained if len(told) >= ENOUGH), None)
        if first is None or sum(len(told) >= ENOUGH for told in trained) * 2 < len(names):
            continue
        overwritten = sum(is_overwritten(evidence, name) for name in names)
        source = sum(is_overwritten(evidence, f"{copies.one}/{name}") for name in copies.names)
        if source or not (overwritten or copies.were_equal):
            continue
        update, parameter = first[0]
        yield RULE.finding(
            copies.other,
            f"{copies.other} is a copy of {copies.one}"
            + (" and is written by the program" if overwritten else "")
            + f", but {update.variable or update.optimizer} has it, too, and trains it.",
            step=update.step,
            source=update.made or update.source,
            certainty="sure" if overwritten else "likely",
            weight=0.8,
            evidence={
                "parameters": len(names),
                "of those trained": sum(len(told) >= ENOUGH for told in trained),
                "of those also written between steps": overwritten,
                "largest gradient": parameter.gradient,
            },
        )


RULE = Rule(
    "copy-is-trained",
    "sure",
    "A module whose name says that it follows another (teacher, target, average, momentum, …) has the "
    "structure of that other one, gets gradients, and an optimizer changes it. It is sure if the program "
    "itself also writes it between steps, and likely if it only began with the same values.",
    "target = copy.deepcopy(online)\noptimizer = Adam([*online.parameters(), *target.parameters()])\n...\n"
    "target.load_state_dict(online.state_dict())",
    "how many parameters are trained, how many are written between steps, a gradient",
    "Leave it out of the optimizer, call requires_grad_(False) on it, and use it under torch.no_grad().",
    find,
)
