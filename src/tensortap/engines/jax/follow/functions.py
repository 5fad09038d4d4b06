"""What is known of the functions that a program calls: which of them train, and what they return."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import jax

from tensortap.engines.jax.lines import is_of_jax
from tensortap.engines.jax.program import Program, is_of_library, updated_arguments

__all__ = ["Family", "Function", "Functions"]

_KEPT = 2048


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
        floats: places of the results that can be bad.
        known_bad: kinds of bad values that each of them has had.
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
