"""What is known of the functions that a program calls: which of them train, and what they return."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import jax

from tensortap.engines.jax.lines import is_of_jax
from tensortap.engines.jax.program import Program, updated_arguments

__all__ = ["Function", "Functions"]

_KEPT = 2048


class Function:
    """A compiled function, known by its traced program.

    Attributes:
        is_library: it is one of `jax.numpy` or a single operation, called outside of the functions of the program.
        trains: it returns what it was given, updated.
        is_sure: it was seen to be given its own results.
        calls: how many there were.
        floats: places of the results that can be bad.
        known_bad: kinds of bad values that each of them has had.
    """

    def __init__(self, jaxpr: Any, name: str) -> None:
        self.jaxpr = jaxpr
        self.name = name
        info = jaxpr.jaxpr.debug_info
        self.is_library = is_of_jax(getattr(info, "func_filename", None))
        self.calls = 0
        self.is_sure = False
        self.known_bad: dict[int, int] = {}
        self.floats = tuple(
            place
            for place, aval in enumerate(jaxpr.out_avals)
            if hasattr(aval, "dtype")
            and not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
            and jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact)
        )
        self.trains = not self.is_library and bool(updated_arguments(jaxpr))
        self._last: list[weakref.ref[Any]] = []

    def takes_its_results(self, arguments: Sequence[Any]) -> bool:
        """Whether it is given what it returned the last time: then it trains, or goes on with something."""
        given = {id(each) for each in arguments}
        return any((found := ref()) is not None and id(found) in given for ref in self._last)

    def returned(self, results: Sequence[Any]) -> None:
        """Remember what it returned, without keeping it."""
        self._last = [weakref.ref(each) for each in results if isinstance(each, jax.Array)]

    @functools.cached_property
    def program(self) -> Program:
        """What it consists of."""
        return Program(self.jaxpr)


class Functions:
    """The functions of a program, by their traced programs."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Function] = OrderedDict()

    def of(self, jaxpr: Any, name: str) -> Function:
        """The function of a traced program."""
        found = self._known.get(id(jaxpr))
        if found is None:
            found = self._known[id(jaxpr)] = Function(jaxpr, name)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found
