"""Nested fetches: single items, lists, tuples, named tuples and mappings, to any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["is_empty", "leaves", "map_leaves"]


def map_leaves(function: Callable[[Any], Any], structure: Any) -> Any:
    """A copy of `structure` with `function` applied to every leaf.

    >>> map_leaves(str.upper, ["a", {"b": ("c",)}])
    ['A', {'b': ('C',)}]
    """
    if isinstance(structure, Mapping):
        items = [(key, map_leaves(function, value)) for key, value in structure.items()]
        return type(structure)(items) if isinstance(structure, dict) else dict(items)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(map_leaves(function, value) for value in structure))
    if isinstance(structure, (list, tuple)):
        return type(structure)(map_leaves(function, value) for value in structure)
    return function(structure)


def leaves(structure: Any) -> Iterator[Any]:
    """Every leaf, in order."""
    if isinstance(structure, Mapping):
        for value in structure.values():
            yield from leaves(value)
    elif isinstance(structure, (list, tuple)):
        for value in structure:
            yield from leaves(value)
    else:
        yield structure


def is_empty(structure: Any) -> bool:
    """Whether a (nested) structure holds no leaf at all."""
    return next(leaves(structure), _NOTHING) is _NOTHING


_NOTHING = object()
