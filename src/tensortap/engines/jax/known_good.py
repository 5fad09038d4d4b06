"""Arrays of which it is known that nothing in them is bad, because they were looked at when they were made.

What compiled code returns never changes. State that a step was given by the one before need not be read again.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import jax

__all__ = ["KnownGood"]


class KnownGood:
    """A set of arrays, by identity; keeps none of them."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, arrays: Iterable[Any]) -> None:
        """These are good."""
        for each in arrays:
            if isinstance(each, jax.Array):
                key = id(each)
                self._references[key] = weakref.ref(each, functools.partial(self._forget, key))

    def _forget(self, key: int, _: object) -> None:
        self._references.pop(key, None)

    def __contains__(self, array: object) -> bool:
        reference = self._references.get(id(array))
        return reference is not None and reference() is array
