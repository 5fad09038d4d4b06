"""Which arguments of a program it returns, updated: by their paths."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jax.extend.core import ClosedJaxpr

from tensortap.engines.jax.lines import is_of_jax

__all__ = ["updated_arguments"]

_FIRST_PART = re.compile(r"^(\[[^\]]*\]|\.?\w+)")


def updated_arguments(closed: ClosedJaxpr) -> frozenset[int]:
    """Places of the arguments of a program that are returned under the same path: parameters, most likely."""
    info, given = closed.jaxpr.debug_info, {}
    if is_of_jax(getattr(info, "func_filename", None)):
        return frozenset()  # paths that JAX has made up
    paths = getattr(info, "arg_names", None) or ()
    for place, (path, aval) in enumerate(zip(paths, closed.in_avals, strict=False)):
        end = _FIRST_PART.sub("", str(path or ""))
        if end:
            given[end, aval.str_short()] = place
    returned = zip(getattr(info, "result_paths", None) or (), closed.out_avals, strict=False)
    keys = ((end, aval.str_short()) for path, aval in returned for end in _endings(str(path or "")))
    return frozenset(given[key] for key in keys if key in given)


def _endings(path: str) -> Iterator[str]:
    """The path of a result without its first parts: `result[0]['w']`, `[0]['w']`, `['w']`."""
    while path:
        yield path
        path, before = _FIRST_PART.sub("", path), path
        if path == before:
            return
