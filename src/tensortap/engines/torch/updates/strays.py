"""Tensors that get gradients although no model and no optimizer has them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from tensortap.engines.torch.program import clean_path
from tensortap.engines.torch.updates.declared import line_of_attribute
from tensortap.engines.torch.updates.samples import mark_of, sample_of
from tensortap.engines.torch.values import dtype_name, shape_of
from tensortap.records import Frame, StrayTensor

__all__ = ["Strays"]

_MOST_TOLD = 64
_MOST_LOOKED_INTO = 256
_REGISTERED = frozenset(["_parameters", "_buffers", "_modules"])


class Strays:
    """Knows in how many updates each of them was there."""

    def __init__(self) -> None:
        self._steps: Any = WeakIdKeyDictionary()

    def among(
        self, leaves: Iterable[torch.Tensor], known: Container[int], modules: Mapping[str, nn.Module]
    ) -> tuple[StrayTensor, ...]:
        """Those that have been there before.

        Args:
            leaves: tensors that a loss leads to.
            known: identities of those that a model or an optimizer has.
            modules: models by name, in which they may be held without being registered.
        """
        found: list[StrayTensor] = []
        for leaf in leaves:
            if id(leaf) in known:
                continue
            steps = self._steps[leaf] = self._steps.get(leaf, 0) + 1
            if steps > 1 and len(found) < _MOST_TOLD:
                name, line = _holder_of(leaf, modules)
                found.append(
                    StrayTensor(
                        name,
                        tuple(each or 0 for each in shape_of(leaf)),
                        dtype_name(leaf.dtype),
                        steps,
                        mark_of(sample_of(leaf)),
                        None if line is None else str(line),
                    )
                )
        return tuple(found)


def _holder_of(leaf: torch.Tensor, modules: Mapping[str, nn.Module]) -> tuple[str, Frame | None]:
    """Where a module holds a tensor that is no parameter of it: in an attribute, a list, or a module in a list."""
    for key, root in modules.items():
        for path, module in root.named_modules():
            for name, value in list(module.__dict__.items()):
                place = None if name in _REGISTERED else _place_in(value, leaf)
                if place is not None:
                    whole = clean_path(".".join(filter(None, (key, path, name, place))))
                    kind: Any = type(module)
                    return whole, line_of_attribute(kind, name)
    return "", None


def _place_in(value: Any, leaf: torch.Tensor, depth: int = 2) -> str | None:
    """Where in the attribute of a module a tensor is; empty for the attribute itself, None if it is not there."""
    if value is leaf:
        return ""
    if isinstance(value, nn.Module):
        return next((name for name, each in value.named_parameters() if each is leaf), None)
    if not depth or not isinstance(value, list | tuple | dict):
        return None
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(parts)[:_MOST_LOOKED_INTO]:
        place = _place_in(each, leaf, depth - 1)
        if place is not None:
            return f"{key}.{place}".rstrip(".")
    return None
