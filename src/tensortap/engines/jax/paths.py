"""Names for the leaves of a pytree: their paths, as scopes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax

__all__ = ["clean_name", "named_leaves"]

_PARTS = re.compile(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[([^\]]*)\]|\.?([A-Za-z_][\w\-]*)|([^\s\[\].]+)")
_UNUSABLE = re.compile(r"[^A-Za-z0-9_.\-]")


def clean_name(path: str) -> str:
    """A path as JAX prints it, as a name.

    >>> clean_name("params['dense'][0].kernel"), clean_name("x")
    ('params/dense/0/kernel', 'x')
    """
    parts = ["".join(filter(None, found)) for found in _PARTS.findall(path)]
    cleaned = [_UNUSABLE.sub("_", part).strip("_. ") for part in parts]
    return "/".join(part for part in cleaned if part)


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every leaf with its name; a second one of the same name has a number behind it."""
    taken: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = clean_name(jax.tree_util.keystr(path[:-1] if _is_of_variable(path) else path)) or "value"
        number = taken[name] = taken.get(name, -1) + 1
        yield (f"{name}_{number}" if number else name), leaf


def _is_of_variable(path: tuple[Any, ...]) -> bool:
    """Whether the last part is that of a variable of nnx, which has one leaf and the name of the variable."""
    return len(path) > 1 and isinstance(path[-1], jax.tree_util.GetAttrKey) and path[-1].name == "value"
