"""Teachers, targets and averages that stay what they were."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.lines import assignment_of
from tensortap.analyze.checks.rule import Rule
from tensortap.analyze.checks.updates.copies import Copies, copies_in
from tensortap.records import Frame

__all__ = ["RULE"]

ENOUGH_STEPS = 12


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Copies that are used in training and never change, while what they are copies of does."""
    steps = evidence.updates[-1].step - evidence.updates[0].step + 1 if evidence.updates else 0
    for copies in copies_in(evidence):
        names = [f"{copies.other}/{name}" for name in copies.names]
        used = next((run for run in evidence.training_runs if any(name in run.nodes for name in names)), None)
        if not copies.were_equal or used is None or steps < ENOUGH_STEPS:
            continue
        still = all(len(_marks(evidence, name)) == 1 for name in names)
        moves = any(len(_marks(evidence, f"{copies.one}/{name}")) > 1 for name in copies.names)
        held = any(each.held for name in names for _, each in evidence.parameters[name])
        if not still or not moves or held:
            continue
        yield RULE.finding(
            copies.other,
            f"{copies.other} began as a copy of {copies.one} and is used in training, but never follows it: "
            f"it has not changed in {steps} steps.",
            step=evidence.updates[0].step,
            source=_line(evidence, copies),
            weight=0.6,
            evidence={
                "steps": steps,
                "parameters": len(names),
                "of those that changed": 0,
                f"updates of {copies.one} looked at": len(evidence.updates),
            },
        )


def _marks(evidence: Evidence, name: str) -> set[str | None]:
    return {mark for _, each in evidence.parameters.get(name, []) for mark in (each.mark_before, each.mark)}


def _line(evidence: Evidence, copies: Copies) -> Frame | None:
    """Where the copy gets its name; else where it is used first."""
    for run in evidence.training_runs:
        for name in copies.names:
            for node, _ in run.consumers(f"{copies.other}/{name}:0"):
                line = node.own_source
                if line is not None:
                    return assignment_of(run, line.file, copies.other.rpartition("/")[2]) or line
    return None


RULE = Rule(
    "copy-never-follows",
    "likely",
    "A module whose name says that it follows another (teacher, target, average, momentum, …) began with "
    "the same values as that other one, is used in training, and has not changed in twelve steps and more, "
    "while the other one has. Copies that are called something else (reference, old, frozen) are taken to "
    "be meant.",
    "target = copy.deepcopy(online)\n...\nfor slow, fast in zip(target.parameters(), online.parameters()):\n"
    "    slow = 0.99 * slow + 0.01 * fast  # makes a new tensor, and target keeps the old one",
    "for how many steps, and how many of its parameters changed",
    "Write the average in place (slow.data.lerp_(fast, 0.01)), or load the state of the other one now and then.",
    find,
)
