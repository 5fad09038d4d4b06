"""Memory as it was found, used as a weight."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule

__all__ = ["RULE"]


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Parameters that were made of empty memory and held the same when they were first trained."""
    for name, updates in evidence.parameters.items():
        update, parameter = updates[0]
        if not parameter.is_unwritten or not parameter.trains or parameter.gradient is None:
            continue
        yield RULE.finding(
            name,
            f"{name} was made of memory that nobody has written: it starts with whatever was there before.",
            step=update.step,
            source=parameter.source,
            evidence={
                "elements": parameter.elements,
                "root mean square": parameter.size,
                "largest gradient": parameter.gradient,
            },
        )


RULE = Rule(
    "uninitialised-weight",
    "sure",
    "A parameter that a module makes of empty memory (torch.empty, torch.Tensor(sizes)) holds, when the first "
    "update comes to it, exactly what that memory held when the module got it, which is not zero. Memory that "
    "holds zeros may have been filled with them, and is left alone.",
    "self.weight = nn.Parameter(torch.empty(width, width))  # and no initialisation",
    "its size, and that it gets gradients",
    "Initialise it in the constructor, as with nn.init.xavier_uniform_(self.weight).",
    find,
)
