"""Divisors that need not be looked at, because what they are made of lies within bounds.

A NaN in a divisor shows in the quotient; an infinity does not. A large divisor, which XLA would otherwise never write
to memory (Adam's `sqrt(nu / c) + eps`), has to be written if somebody looks at it. But if the results of the program
that it is made of are small enough, and the numbers it is divided by not too small, it cannot be infinite: these are in
memory anyway. Who finds something beyond its bounds has found nothing bad, and looks at everything.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.engines.jax.program import Argument, Op, Site, Value

__all__ = ["Bounds", "settled_by"]

_LARGE = 1 << 14
"""Elements of a divisor above which it is worth while."""

_SMALL = 1 << 10
"""Elements of what can be looked at wherever it is made."""

_LEAST = 1e-12
_DTYPES = {"float32": float(np.finfo(np.float32).max), "float64": float(np.finfo(np.float64).max)}
_SAME = frozenset(["broadcast_in_dim", "copy", "copy_p", "neg", "abs", "reshape", "squeeze", "transpose"])


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between which magnitudes the elements of a tensor lie, if nothing made of it can be infinite."""

    least: float = 0.0
    most: float = math.inf

    def and_(self, other: Bounds) -> Bounds:
        """Within both."""
        return Bounds(max(self.least, other.least), min(self.most, other.most))


def settled_by(
    divisor: Site, makers: Mapping[int, Op], results: Collection[int]
) -> Mapping[int, Bounds] | None:
    """Bounds of other sites within which a divisor is finite or NaN; None if it has to be looked at.

    Args:
        divisor: the site.
        makers: operations by the numbers of their outputs.
        results: numbers of what the program returns.
    """
    largest = _DTYPES.get(divisor.spec.dtype)
    if largest is None or _elements(divisor) < _LARGE:
        return None
    found: dict[int, Bounds] = {}
    whole = _Question(divisor.spec.dtype, makers, results, found)
    return found if whole.at_most(divisor, largest / 4, is_first=True) else None


class _Question:
    def __init__(
        self,
        dtype: str,
        makers: Mapping[int, Op],
        results: Collection[int],
        found: dict[int, Bounds],
    ) -> None:
        self._dtype, self._makers, self._results, self._found = dtype, makers, results, found

    def at_most(self, value: Value, most: float, is_first: bool = False) -> bool:
        """Whether a value can be kept from being larger; bounds of what it is made of are noted."""
        if not isinstance(value, Site):
            return _is_literal(value) and float(np.max(np.abs(np.asarray(value)))) <= most
        op = self._makers.get(value.number)
        if op is None or op.loops or value.spec.dtype != self._dtype or not all(value.spec.shape):
            return False
        if not is_first and self._can_be_looked_at(value):
            return self._note(value, Bounds(most=most))
        inputs = op.inputs
        if op.primitive in _SAME:
            return self.at_most(inputs[0], most)
        if op.primitive == "sqrt":  # of something negative it is NaN, which shows
            return self.at_most(inputs[0], min(most, math.sqrt(_DTYPES[self._dtype]) / 4) ** 2)
        if op.primitive in ("add", "sub"):
            return all(self.at_most(each, most / 2) for each in inputs)
        if op.primitive == "mul":
            factors = sorted(inputs, key=_is_literal)
            if _is_literal(factors[1]):
                times = max(float(np.max(np.abs(np.asarray(factors[1])))), 1.0)
                return self.at_most(factors[0], most / times)
            return all(self.at_most(each, math.sqrt(most)) for each in inputs)
        if op.primitive == "div":
            return self._at_least(inputs[1], _LEAST) and self.at_most(inputs[0], most * _LEAST)
        return False

    def _at_least(self, value: Value, least: float) -> bool:
        if not isinstance(value, Site):
            return _is_literal(value) and float(np.min(np.abs(np.asarray(value)))) >= least
        op = self._makers.get(value.number)
        if op is None or op.loops or value.spec.dtype != self._dtype:
            return False
        if _elements(value) <= _SMALL:
            return self._note(value, Bounds(least=least))
        return op.primitive in _SAME and self._at_least(op.inputs[0], least)

    def _can_be_looked_at(self, site: Site) -> bool:
        return site.number in self._results or _elements(site) <= _SMALL

    def _note(self, site: Site, bounds: Bounds) -> bool:
        self._found[site.number] = self._found.get(site.number, Bounds()).and_(bounds)
        return True


def _elements(site: Site) -> int:
    return math.prod(each or 0 for each in site.spec.shape)


def _is_literal(value: Any) -> bool:
    if isinstance(value, (Site, Argument)):
        return False
    try:
        return bool(np.issubdtype(np.asarray(value).dtype, np.number)) and np.asarray(value).size > 0
    except (TypeError, ValueError):
        return False
