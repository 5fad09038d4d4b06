"""Units that are all the same, and stay so."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.flow import line_of_use
from tensortap.analyze.checks.lines import first_match
from tensortap.analyze.checks.rule import Rule
from tensortap.records import Frame

__all__ = ["RULE"]


ENOUGH = 3
"""Updates in which it has to be so."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Weights whose rows are equal although they have been trained."""
    told = set()
    for name, updates in evidence.parameters.items():
        known = [(update, each) for update, each in updates if each.rows_differ is not None]
        moved = [each for _, each in known if each.changed]
        if len(known) < ENOUGH or len(moved) < ENOUGH - 1 or any(each.rows_differ for _, each in known[1:]):
            continue
        update, parameter = known[0]
        model = name.partition("/")[0]
        if model in told:
            continue
        told.add(model)
        equal = [
            other
            for other, each in evidence.parameters.items()
            if other.startswith(f"{model}/") and each[-1][1].rows_differ is False
        ]
        yield RULE.finding(
            name,
            f"All {parameter.shape[0]} rows of {name} are equal, and stay so after {len(known)} updates: its units all "
            "learn the same.",
            step=update.step,
            source=parameter.source or _line_of(evidence, name),
            evidence={
                "rows": parameter.shape[0],
                "different ones": 1,
                "updates": len(known),
                "weights like that": len(equal),
            },
        )


def _line_of(evidence: Evidence, name: str) -> Frame | None:
    """The line that starts all its rows alike, or else one that uses it."""
    used = line_of_use(evidence.runs, name)
    if used is None:
        return None
    attribute = re.escape(name.rpartition("/")[2])
    starts = rf"\b(constant_|ones_|zeros_)\(.*\b{attribute}\b|\b{attribute}(\.data)?\.(fill_|zero_|copy_)\("
    return first_match(evidence.runs[0], used.file, starts) or used


RULE = Rule(
    "equal-rows",
    "sure",
    "All rows of a weight are equal and stay equal while updates change it, three at least: the units it "
    "belongs to were started alike, get the same gradients and can never differ. Weights that start at zero "
    "and become different with the first updates, as those of a zero-initialised branch do, are left alone.",
    "nn.init.constant_(layer.weight, 0.05)",
    "how many rows there are, and after how many updates they are still equal",
    "Draw weights at random: nn.init.kaiming_uniform_, xavier_uniform_, or normal_.",
    find,
)
