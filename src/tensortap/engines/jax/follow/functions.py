"""What is known of the functions that a program calls: which of them train, and what they return."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import jax

from tensortap.engines.jax.dtypes import XLA_DTYPES
from tensortap.engines.jax.lines import is_of_jax
from tensortap.engines.jax.program import Program, is_of_library, updated_arguments
from tensortap.engines.jax.taps.lean import Telling, telling
from tensortap.engines.jax.taps.library import Memory

__all__ = ["Family", "Function", "Functions"]

_KEPT = 2048
_SMALL = 1 << 18
_LITTLE = 1 << 14
_ON_HOST = frozenset(["pure_callback", "io_callback", "debug_callback"])


class Family:
    """What was traced of one function of the program: for every shape it is called with there is one more.

    Attributes:
        trains: it returns what it was given, updated.
        is_sure: it was seen to be given its own results.
        calls: how many there were.
    """

    def __init__(self, trains: bool) -> None:
        self.trains = trains
        self.is_sure = False
        self.calls = 0
        self._last: dict[int, list[weakref.ref[Any]]] = {}

    def takes_its_results(self, arguments: Sequence[Any]) -> bool:
        """Whether it is given what it returned the last time: then it trains, or goes on with something."""
        given = {id(each) for each in arguments}
        return any(
            (found := ref()) is not None and id(found) in given
            for results in self._last.values()
            for ref in results
        )

    def returned(self, member: int, results: Sequence[Any]) -> None:
        """Remember what one of its members returned, without keeping it."""
        self._last[member] = [weakref.ref(each) for each in results if isinstance(each, jax.Array)]


class Function:
    """A compiled function, known by its traced program.

    Attributes:
        is_library: it is one of `jax.numpy` or a single operation, called outside of the functions of the program.
        family: what else was traced of the same function.
        floats: places of the results that can be bad; of many, those in which others would show.
        known_bad: kinds of bad values that each of them has had.
        nbytes, nbytes_of: of all its arguments, and of each.
        repeats: of a function that returns much, whether it returns the same again, and nobody hears of it.
        is_small: its results are looked at faster than somebody else could be asked to.
        memory: how the results that can be bad lie in memory; None if not all of them can be read there.
        little: which of these are so small that they are kept until somebody looks at them.
        telling: what is known of a function that returns much: which results and arguments show in others.
        is_given_away: its results have been seen to be donated to another call before they were looked at.
    """

    def __init__(self, jaxpr: Any, name: str, families: dict[Any, Family]) -> None:
        self.jaxpr = jaxpr
        self.name = name
        self.is_library = is_of_library(jaxpr.jaxpr)
        self.known_bad: dict[int, int] = {}
        self.floats = tuple(
            place
            for place, aval in enumerate(jaxpr.out_avals)
            if hasattr(aval, "dtype")
            and not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
            and jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact)
        )
        self.nbytes_of = tuple(_nbytes(aval) for aval in jaxpr.in_avals)
        self.nbytes = sum(self.nbytes_of)
        nbytes = sum(_nbytes(jaxpr.out_avals[place]) for place in self.floats)
        self.is_small = nbytes <= _SMALL
        self.telling: Telling | None = None
        self.repeats = False
        if not self.is_small and not self.is_library:
            self.telling = telling(self.program)
            self.repeats = not jaxpr.effects and not any(op.primitive in _ON_HOST for op in self.program.ops)
            self.floats = tuple(place for place in self.floats if place in self.telling.results)
        avals = [jaxpr.out_avals[place] for place in self.floats]
        self.memory = _memory(avals)
        self.little = tuple(place for place, aval in enumerate(avals) if _nbytes(aval) <= _LITTLE)
        self.is_given_away = False
        trains = not self.is_library and bool(updated_arguments(jaxpr))
        info = jaxpr.jaxpr.debug_info
        line = (getattr(info, "func_filename", None), getattr(info, "func_lineno", None), name)
        if self.is_library or line[0] is None:
            self.family = Family(trains)
        else:
            # What JAX wraps (`pmap`) has the line of the wrapper.
            told = tuple(map(str, jaxpr.out_avals)) if is_of_jax(line[0]) else ()
            self.family = families.setdefault((*line, *told), Family(trains))

    @functools.cached_property
    def program(self) -> Program:
        """What it consists of."""
        return Program(self.jaxpr)


def _nbytes(aval: Any) -> int:
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)  # keys have none
    return int(itemsize) * int(getattr(aval, "size", 0))


def _memory(avals: Sequence[Any]) -> Memory | None:
    if any(aval.dtype.name not in XLA_DTYPES for aval in avals):
        return None
    return Memory([aval.dtype.name for aval in avals], [aval.size for aval in avals])


class Functions:
    """The functions of a program, by their traced programs."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Function] = OrderedDict()
        self._families: dict[Any, Family] = {}

    def of(self, jaxpr: Any, name: str) -> Function:
        """The function of a traced program."""
        found = self._known.get(id(jaxpr))
        if found is None:
            found = self._known[id(jaxpr)] = Function(jaxpr, name, self._families)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found
