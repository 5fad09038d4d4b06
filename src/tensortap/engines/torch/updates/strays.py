"""Tensors that get gradients although no model and no optimizer has them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from tensortap.engines.torch.program import clean_path
from tensortap.engines.torch.updates.declared import line_of_attribute
from tensortap.engines.torch.updates.samples import mark_of, sample_of
from tensortap.engines.torch.values import dtype_name, shape_of
from tensortap.records import StrayTensor

__all__ = ["Strays"]

_MOST_TOLD = 64
_MOST_LOOKED_INTO = 256
_REGISTERED = frozenset(["_parameters", "_buffers", "_modules"])


class _Stray:
    """What is known of one of them."""

    __slots__ = ("held", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.held: tuple[str, str | None] | None = None  # where, once somebody has looked for it


class Strays:
    """Knows in how many updates each of them was there."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    def among(
        self, leaves: Iterable[torch.Tensor], known: Container[int], modules: Mapping[str, nn.Module]
    ) -> tuple[StrayTensor, ...]:
        """Those that have been there before.

        Args:
            leaves: tensors that a loss leads to.
            known: identities of those that a model or an optimizer has.
            modules: models by name, in which they may be held without being registered.
        """
        told: list[tuple[torch.Tensor, _Stray]] = []
        for leaf in leaves:
            if id(leaf) in known:
                continue
            stray = self._known.get(leaf)
            if stray is None:
                stray = self._known[leaf] = _Stray()
            stray.steps += 1
            if stray.steps > 1 and len(told) < _MOST_TOLD:
                told.append((leaf, stray))
        _find_holders([(leaf, stray) for leaf, stray in told if stray.held is None], modules)
        return tuple(_told(leaf, stray) for leaf, stray in told)


def _told(leaf: torch.Tensor, stray: _Stray) -> StrayTensor:
    name, line = stray.held or ("", None)
    shape = tuple(each or 0 for each in shape_of(leaf))
    return StrayTensor(name, shape, dtype_name(leaf.dtype), stray.steps, mark_of(sample_of(leaf)), line)


def _find_holders(strays: list[tuple[torch.Tensor, _Stray]], modules: Mapping[str, nn.Module]) -> None:
    """Find out where modules hold tensors that are no parameters of theirs: an attribute, a list, a module in a list.

    All in one go and once for each: under FSDP2 every whole weight is one of them, and a large model has many modules.
    """
    sought = {id(leaf): stray for leaf, stray in strays}
    for stray in sought.values():
        stray.held = "", None
    roots = modules.items() if sought else ()
    for key, root in roots:
        for path, module in root.named_modules():
            for name, value in list(module.__dict__.items()):
                if name in _REGISTERED:
                    continue
                for place, leaf in _tensors_in(value):
                    if id(leaf) in sought:
                        stray = sought.pop(id(leaf))
                        whole = clean_path(".".join(filter(None, (key, path, name, place))))
                        kind: Any = type(module)
                        line = line_of_attribute(kind, name)
                        stray.held = whole, None if line is None else str(line)


def _tensors_in(value: Any, depth: int = 2) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in the attribute of a module, and where in it they are; empty for the attribute itself."""
    if isinstance(value, torch.Tensor):
        yield "", value
    elif isinstance(value, nn.Module):
        yield from value.named_parameters()
    elif depth and isinstance(value, list | tuple | dict):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in list(parts)[:_MOST_LOOKED_INTO]:
            for place, tensor in _tensors_in(each, depth - 1):
                yield f"{key}.{place}".rstrip("."), tensor
