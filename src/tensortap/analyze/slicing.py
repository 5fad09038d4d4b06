"""Slices as people type them: `[0, -1, ::2]`, parsed and never executed."""

from __future__ import annotations

import re
from types import EllipsisType

from tensortap.errors import UsageError

__all__ = ["parse_slices", "split_slices"]

Index = int | slice | EllipsisType

_PART = re.compile(r"\s*(?:(?P<all>\.\.\.)|(?P<numbers>-?\d*(?:\s*:\s*-?\d*){0,2}))\s*")
_NUMBER = re.compile(r"-?\d+")


def split_slices(text: str) -> tuple[str, tuple[Index, ...]]:
    """Split a tensor name from the slices behind it.

    >>> split_slices("model/fc/addmm:0[-1, :3]")
    ('model/fc/addmm:0', (-1, slice(None, 3, None)))
    """
    name, bracket, rest = text.partition("[")
    if not bracket:
        return text, ()
    if not rest.endswith("]"):
        raise UsageError(f"The slice in {text!r} is not closed; write it as name[0, -1, ::2].")
    return name, parse_slices(rest[:-1])


def parse_slices(text: str) -> tuple[Index, ...]:
    """What stands between the brackets.

    >>> parse_slices("::2, ..., -1")
    (slice(None, None, 2), Ellipsis, -1)
    """
    indices: list[Index] = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None or not part.strip():
            raise UsageError(f"{part.strip()!r} is no index or slice; use numbers, a:b:c or ... .")
        if match["all"]:
            indices.append(...)
            continue
        ends = [int(each) if each.strip() else None for each in _ends(match["numbers"])]
        if len(ends) == 1 and ends[0] is not None:
            indices.append(ends[0])
        elif len(ends) == 3 and ends[2] == 0:
            raise UsageError(f"The step of {part.strip()!r} must not be zero.")
        else:
            indices.append(slice(*ends))
    return tuple(indices)


def _ends(text: str) -> list[str]:
    ends = [each.strip() for each in text.split(":")]
    for end in ends:
        if end and not _NUMBER.fullmatch(end):
            raise UsageError(f"{end!r} is no number.")
    return ends
