"""What is known of the functions that a program calls: which of them train, and what they return."""

from __future__ import annotations

import re
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from tensortap.engines.jax.lines import is_of_jax
from tensortap.engines.jax.program import Program

__all__ = ["Function", "Functions"]

_FIRST_PART = re.compile(r"^(\[[^\]]*\]|\.?\w+)")
_KEPT = 2048


class Function:
    """A compiled function, known by its traced program.

    Attributes:
        is_library: it is one of `jax.numpy` or a single operation, which the program calls outside its own functions.
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
        self.trains = not self.is_library and self._returns_what_it_is_given()
        self._last: list[weakref.ref[Any]] = []

    def takes_its_results(self, arguments: Sequence[Any]) -> bool:
        """Whether it is given what it returned the last time: then it trains, or goes on with something."""
        given = {id(each) for each in arguments}
        return any((found := ref()) is not None and id(found) in given for ref in self._last)

    def returned(self, results: Sequence[Any]) -> None:
        """Remember what it returned, without keeping it."""
        self._last = [weakref.ref(each) for each in results if isinstance(each, jax.Array)]

    @property
    def has_gradients(self) -> bool:
        """Whether it works out gradients."""
        return Program(self.jaxpr).has_gradients

    def _returns_what_it_is_given(self) -> bool:
        info = self.jaxpr.jaxpr.debug_info
        given = {
            (_FIRST_PART.sub("", str(path or "")), aval.str_short())
            for path, aval in zip(info.arg_names or (), self.jaxpr.in_avals, strict=False)
        }
        given = {each for each in given if each[0]}
        paths = zip(info.result_paths or (), self.jaxpr.out_avals, strict=False)
        return any(
            (end, aval.str_short()) in given for path, aval in paths for end in _endings(str(path or ""))
        )


def _endings(path: str) -> Iterator[str]:
    """The path of a result without its first parts: `result[0]['w']`, `[0]['w']`, `['w']`."""
    while path:
        yield path
        path, before = _FIRST_PART.sub("", path), path
        if path == before:
            return


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
