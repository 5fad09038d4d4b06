"""What goes into a step and comes out of it: its inputs by path, its results by key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensortap.engines.structure import map_leaves
from tensortap.engines.torch.program import clean_path
from tensortap.engines.torch.values import snapshot, to_numpy

__all__ = ["as_mapping", "fetched", "keys_of", "placeholders"]


def placeholders(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors handed to the step by name; nested ones under their path."""
    found: dict[str, torch.Tensor] = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            found[name] = value
            continue
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if isinstance(leaf, torch.Tensor):
                keys = (
                    str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path
                )
                found["/".join([name, *(clean_path(key) or "_" for key in keys)])] = leaf
    return found


def keys_of(result: Any) -> tuple[str, ...]:
    """Keys under which parts of what a step returned can be fetched."""
    return tuple(each for each in as_mapping(result) if isinstance(each, str))


def as_mapping(result: Any) -> Mapping[Any, Any]:
    """What a step returned, by key; empty when it has none."""
    if isinstance(result, Mapping):
        return result
    if isinstance(result, tuple) and hasattr(result, "_asdict"):
        return result._asdict()  # type: ignore[no-any-return]
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return {}


def fetched(value: Any) -> Any:
    """A returned value as it is given to whoever fetched it: tensors as NumPy arrays of their own."""
    return map_leaves(
        lambda leaf: to_numpy(snapshot(leaf)) if isinstance(leaf, torch.Tensor) else leaf, value
    )
