"""The optimizers that a program has."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch.optim.optimizer import Optimizer

__all__ = ["Optimizers"]


class Optimizers:
    """Optimizers, by identity, as long as the program wants them: a `WeakSet` that can be asked several times in every
    step.

    >>> import torch
    >>> optimizers = Optimizers()
    >>> one = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    >>> optimizers.add(one)
    >>> one in optimizers, len(optimizers)
    (True, 1)
    >>> del one
    >>> len(optimizers)
    0
    """

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Optimizer]] = {}

    @property
    def by_identity(self) -> dict[int, weakref.ref[Optimizer]]:
        """All there are, in a dictionary that stays the same."""
        return self._known

    def add(self, optimizer: Optimizer) -> None:
        """The program has made one."""
        number, known = id(optimizer), self._known

        def forget(reference: weakref.ref[Optimizer]) -> None:
            if known.get(number) is reference:  # it may be that of another one by now
                del known[number]

        known[number] = weakref.ref(optimizer, forget)

    def __contains__(self, optimizer: object) -> bool:
        reference = self._known.get(id(optimizer))
        return reference is not None and reference() is optimizer

    def __iter__(self) -> Iterator[Optimizer]:
        return iter([each for reference in list(self._known.values()) if (each := reference()) is not None])

    def __len__(self) -> int:
        return len(self._known)
