"""State that lives in objects, as that of flax's nnx does: a step changes them instead of returning new ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import jax

from tensortap.engines.jax.paths import clean_name

__all__ = ["has_objects", "put_into_objects"]


def has_objects(state: Any) -> bool:
    """Whether there are variables of nnx in a state."""
    variable = _variable_type()
    if variable is None:
        return False
    leaves = jax.tree_util.tree_leaves(state, is_leaf=lambda each: isinstance(each, variable))
    return any(isinstance(each, variable) for each in leaves)


def put_into_objects(state: Any, values: Mapping[str, Any]) -> None:
    """Give variables other values, by tensor name; their objects stay the same."""
    variable = _variable_type()
    assert variable is not None
    found = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda each: isinstance(each, variable))[0]
    for path, leaf in found:
        name = f"{clean_name(jax.tree_util.keystr(path))}:0"
        if isinstance(leaf, variable) and name in values:
            leaf.set_value(values[name])


def _variable_type() -> Any:
    """The type of nnx's variables, if the program uses it."""
    nnx = sys.modules.get("flax.nnx")
    return None if nnx is None else nnx.Variable
