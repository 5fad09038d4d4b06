"""Parts of models that began as copies of each other, as the rules about teachers and targets see it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tensortap.analyze.checks.evidence import Evidence
from tensortap.records import ParameterUpdate

__all__ = ["Copies", "copies_in", "follows_by_name", "is_overwritten"]

_FOLLOWS = re.compile(r"(?i)teacher|target|ema|averag|avg|momentum|slow|shadow|polyak|mean_")


class Copies(NamedTuple):
    """Two modules, or models, of one structure.

    Attributes:
        one: path of the first.
        other: path of the other.
        names: of their parameters, within them.
        were_equal: whether they had the same values before the first update.
    """

    one: str
    other: str
    names: tuple[str, ...]
    were_equal: bool


def copies_in(evidence: Evidence) -> Iterator[Copies]:
    """All pairs of outermost modules of one structure, of which one has a name that says that it follows."""
    if not evidence.updates:
        return
    parameters = {each.name: each for each in evidence.updates[0].parameters if each.is_owned}
    inside: dict[str, dict[str, ParameterUpdate]] = {}
    for name, each in parameters.items():
        parts = name.split("/")
        for length in range(1, len(parts)):
            inside.setdefault("/".join(parts[:length]), {})["/".join(parts[length:])] = each
    following = [path for path in inside if _FOLLOWS.search(path.rpartition("/")[2])]
    following = [path for path in following if not any(path.startswith(f"{other}/") for other in following)]
    for other in following:
        structure = _structure(inside[other])
        for one, held in inside.items():
            apart = not one.startswith(f"{other}/") and not other.startswith(f"{one}/")
            if one != other and one not in following and apart and _structure(held) == structure:
                yield Copies(one, other, tuple(held), _are_equal(held, inside[other]))
                break


def follows_by_name(path: str) -> bool:
    """Whether a name says that what it names follows something else."""
    return _FOLLOWS.search(path) is not None


def is_overwritten(evidence: Evidence, name: str) -> bool:
    """Whether a parameter is changed between updates, and not only by them."""
    history = evidence.parameters.get(name, [])
    return any(
        before.mark is not None and after.mark_before is not None and before.mark != after.mark_before
        for (first, before), (second, after) in pairwise(history)
        if second.step <= first.step + 1
    )


def _structure(held: dict[str, ParameterUpdate]) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((name, each.shape) for name, each in held.items())


def _are_equal(one: dict[str, ParameterUpdate], other: dict[str, ParameterUpdate]) -> bool:
    """Whether all values are the same, and there are some that are not the same by nature."""
    telling = any(len(each.shape) > 1 and each.size for each in one.values())
    marks = [(one[name].mark_before, other[name].mark_before) for name in one]
    return telling and all(a is not None and a == b for a, b in marks)
