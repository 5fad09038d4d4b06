"""What a rule of the table of causes is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tensortap.analyze.case import Case
from tensortap.analyze.findings import Cause

__all__ = ["Rule", "rule"]


class Rule(NamedTuple):
    """A function that says the cause of a case, or nothing if it is not its own.

    Attributes:
        ops: canonical names of the operations it is about; all if none are named.
        tell: the function.
        kinds: the kinds of causes that it tells of.
        is_elementwise: the operations work element by element.
    """

    ops: frozenset[str]
    tell: Callable[[Case], Cause | None]
    kinds: frozenset[str]
    is_elementwise: bool


def rule(ops: str, tell: Callable[[Case], Cause | None], kinds: str, *, is_elementwise: bool = False) -> Rule:
    """A rule, with names and kinds as texts with blanks between them."""
    return Rule(frozenset(ops.split()), tell, frozenset(kinds.split()), is_elementwise)
