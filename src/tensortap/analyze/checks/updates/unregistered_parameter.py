"""Tensors that are used like parameters and are none."""

from __future__ import annotations

from collections.abc import Iterator

from tensortap.analyze.checks.evidence import Evidence
from tensortap.analyze.checks.finding import CheckFinding
from tensortap.analyze.checks.rule import Rule
from tensortap.records import Frame, StrayTensor, Update

__all__ = ["RULE"]

ENOUGH = 3
"""Updates in which it has been the same tensor."""


def find(evidence: Evidence) -> Iterator[CheckFinding]:
    """Attributes of modules that get gradients, are no parameters and stay the same."""
    found: dict[str, list[tuple[Update, StrayTensor]]] = {}
    for update in evidence.updates:
        for stray in update.strays:
            if stray.name:
                found.setdefault(stray.name, []).append((update, stray))
    of_attribute: dict[str, list[str]] = {}
    for name, told in found.items():
        if told[-1][1].steps >= ENOUGH and len({stray.mark for _, stray in told}) == 1:
            of_attribute.setdefault(_attribute(name, told[0][1]), []).append(name)
    for subject, names in of_attribute.items():
        update, stray = found[names[0]][0]
        what = (
            "is a tensor that asks for gradients and gets them, but is no parameter of its module: no optimizer has it"
            if names == [subject]
            else f"holds {len(names)} tensors that ask for gradients and get them, but are no parameters of its "
            "module: no optimizer has them"
        )
        yield RULE.finding(
            subject,
            f"{subject} {what}, and nothing changes in {'it' if names == [subject] else 'them'}.",
            step=update.step,
            source=None if stray.declared is None else Frame.of_text(stray.declared),
            weight=0.85,
            evidence={
                "tensors": len(names),
                "elements": sum(_elements(found[name][0][1]) for name in names),
                "updates in which it was the same": found[names[0]][-1][1].steps,
            },
        )


def _attribute(name: str, stray: StrayTensor) -> str:
    """The attribute of a module that holds a tensor, also in a list: the path as far as the numbers begin."""
    parts = name.split("/")
    for place, part in enumerate(parts):
        if part.isdecimal() and place and stray.declared is not None:
            return "/".join(parts[:place])
    return name


def _elements(stray: StrayTensor) -> int:
    number = 1
    for each in stray.shape:
        number *= each
    return number


RULE = Rule(
    "unregistered-parameter",
    "sure",
    "An attribute of a module, or a list in one, holds a tensor that asks for gradients and gets them, the "
    "same in at least three updates, which is no parameter of the module; no optimizer has it and its "
    "values never change. Left alone are tensors that no module holds (inputs whose gradient is wanted), "
    "and those that the program changes itself.",
    "self.blocks = [nn.Linear(8, 8) for _ in range(4)]  # parameters() does not see them",
    "how many tensors and elements, in how many updates",
    "Make it an nn.Parameter; put modules into an nn.ModuleList or nn.ModuleDict.",
    find,
)
