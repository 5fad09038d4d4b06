"""What comes out of a step, by key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tensortap.engines.tensors import Tensors
from tensortap.seam.structure import map_leaves

__all__ = ["as_mapping", "fetched", "keys_of"]


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


def fetched(tensors: Tensors, value: Any) -> Any:
    """A returned value as it is given to whoever fetched it: tensors as NumPy arrays of their own."""
    return map_leaves(lambda leaf: tensors.value_of(leaf) if tensors.is_tensor(leaf) else leaf, value)
