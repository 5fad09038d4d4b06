"""In which modes models are called that are not trained."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from torch import nn

__all__ = ["Modes"]

_FIRST, _THEN = 32, 64
"""Calls of a model that are looked at: so many, then one of so many. A model may have thousands of modules."""


class Modes:
    """Looks at some of the calls of each model.

    >>> modes, model = Modes(), nn.Sequential(nn.Dropout()).eval()
    >>> modes.told(model, {"model": model})
    ('model', 'evaluation')
    >>> _ = model[0].train()
    >>> modes.told(model, {"model": model}), modes.told(model.train(), {"model": model})
    (('model', 'mixed'), ('model', 'training'))
    """

    def __init__(self) -> None:
        self._calls: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def told(self, model: nn.Module, names: Mapping[str, nn.Module]) -> tuple[str, str] | None:
        """Name and mode of a model that is called; None if nobody looks, or it has no name."""
        calls = self._calls[model] = self._calls.get(model, 0) + 1
        if calls > _FIRST and calls % _THEN:
            return None
        name = next((name for name, each in names.items() if each is model), None)
        if name is None:
            return None
        if getattr(model, "training", False):
            return name, "training"
        return name, "mixed" if any(each.training for each in model.modules()) else "evaluation"
