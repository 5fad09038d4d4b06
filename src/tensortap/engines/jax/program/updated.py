"""Which arguments of a program it returns, updated: by their paths."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jax.extend.core import ClosedJaxpr

from tensortap.engines.jax.lines import is_of_jax

__all__ = ["updated_arguments", "updating_results"]

_FIRST_PART = re.compile(r"^(\[[^\]]*\]|\.?\w+)")


def updated_arguments(closed: ClosedJaxpr) -> frozenset[int]:
    """Places of the arguments of a program that are returned under the same path: parameters, most likely."""
    return frozenset(argument for matches in _matches(closed) for argument in matches)


def updating_results(closed: ClosedJaxpr) -> dict[int, int]:
    """The place of the result that takes the place of an argument, by the place of the argument."""
    found: dict[int, int] = {}
    for place, (longest, *_) in ((n, each) for n, each in enumerate(_matches(closed)) if each):
        found.setdefault(longest, place)
    return found


def _matches(closed: ClosedJaxpr) -> list[list[int]]:
    """For each result the places of the arguments whose path ends as its own does; the longest match first."""
    info, given = closed.jaxpr.debug_info, {}
    if is_of_jax(getattr(info, "func_filename", None)):
        return []  # paths that JAX has made up
    paths = getattr(info, "arg_names", None) or ()
    for place, (path, aval) in enumerate(zip(paths, closed.in_avals, strict=False)):
        end = _FIRST_PART.sub("", str(path or ""))
        if end:
            given[end, aval.str_short()] = place
    returned = zip(getattr(info, "result_paths", None) or (), closed.out_avals, strict=False)
    keys = ([(end, aval.str_short()) for end in _endings(str(path or ""))] for path, aval in returned)
    return [[given[key] for key in each if key in given] for each in keys]


def _endings(path: str) -> Iterator[str]:
    """The path of a result without its first parts: `result[0]['w']`, `[0]['w']`, `['w']`."""
    while path:
        yield path
        path, before = _FIRST_PART.sub("", path), path
        if path == before:
            return
