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

    def passed(self, model: nn.Module, calls: int) -> None:
        """A model was called so many times, none of which is looked at."""
        self._calls[model] = self._calls.get(model, 0) + calls

    def unlooked(self, model: nn.Module) -> int:
        """How many of its next calls nobody looks at.

        >>> modes, model = Modes(), nn.Identity()
        >>> modes.unlooked(model), modes.passed(model, 40), modes.unlooked(model)
        (0, None, 23)
        """
        calls = self._calls.get(model, 0)
        return _THEN - 1 - calls % _THEN if calls >= _FIRST else 0

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
