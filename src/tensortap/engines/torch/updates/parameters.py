"""Parameters before and after an update."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from tensortap.engines.torch.updates.looks import Look, Room
from tensortap.engines.torch.updates.rows import rows_differ
from tensortap.engines.torch.values import dtype_name, shape_of
from tensortap.records import ParameterUpdate

__all__ = ["KnownParameters", "SeenParameter", "SeenParameters"]

_LONG = 8
"""Updates in a row."""

_MOST_FORGOTTEN = 64


class _Known:
    """What stays the same of a parameter, and what has to be remembered of its gradients."""

    __slots__ = ("differs", "dtype", "heard", "ref", "shape")

    def __init__(self, parameter: torch.Tensor) -> None:
        self.ref = weakref.ref(parameter)
        self.shape = tuple(each or 0 for each in shape_of(parameter))
        self.dtype = dtype_name(parameter.dtype)
        self.differs: bool | None = False
        self.heard: Any = None

    def rows_differ(self, parameter: torch.Tensor) -> bool | None:
        """Whether its rows differ from each other; asked until they do, because then they never stop to."""
        if self.differs is False:
            self.differs = rows_differ(parameter)
        return self.differs

    def quiet(self, look: Look, number: int) -> float:
        """The share of its gradient, a part of which is zero, that was so in this update and the seven before it."""
        sample = look.gradient(number)
        assert sample is not None
        if self.heard is None or self.heard.shape != sample.shape:
            self.heard = np.zeros(sample.shape, np.int32)
        self.heard += 1
        self.heard[sample != 0] = 0
        return float(np.count_nonzero(self.heard >= _LONG)) / len(self.heard)


class KnownParameters:
    """Remembers parameters for as long as they are there."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._room: Room | None = None

    def look(self, parameters: list[torch.Tensor]) -> Look:
        """Take samples; what was taken before is gone then."""
        look = Look(parameters, self._room)
        self._room = look.room
        return look

    def of(self, parameter: torch.Tensor) -> _Known:
        """What is known of one."""
        known = self._known.get(id(parameter))
        # `.data = …` may give a parameter another shape or type.
        if known is None or known.ref() is not parameter or known.shape != parameter.shape:
            known = self._known[id(parameter)] = _Known(parameter)
        return known

    def forget_dead(self, alive: int) -> None:
        """Forget those that are gone, if they are many."""
        if len(self._known) > 2 * alive + _MOST_FORGOTTEN:
            self._known = {key: each for key, each in self._known.items() if each.ref() is not None}


class SeenParameter:
    """A parameter that is about to be updated, or to be left as it is.

    Args:
        name: in the graph.
        parameter: itself.
        is_owned: whether a known model has it.
        held: the optimizers that have it.
        is_own: whether the optimizer that steps has it.
        is_stale: whether its gradient holds what was applied before.

    Attributes:
        declared: where it comes from, if somebody has found out.
        is_unwritten: whether nobody has written to its memory, if somebody has found out.
        rows_differ: whether its rows differ from each other; None if it has none.
    """

    __slots__ = (
        "declared",
        "held",
        "is_own",
        "is_owned",
        "is_stale",
        "is_unwritten",
        "name",
        "parameter",
        "rows_differ",
    )

    def __init__(
        self, name: str, parameter: torch.Tensor, is_owned: bool, held: tuple[str, ...], is_own: bool, is_stale: bool
    ) -> None:  # fmt: skip
        self.name, self.parameter, self.is_owned, self.held = name, parameter, is_owned, held
        self.is_own, self.is_stale = is_own, is_stale
        self.declared: str | None = None
        self.is_unwritten: bool | None = None
        self.rows_differ: bool | None = None


class SeenParameters:
    """All of them, as they are before an update.

    Args:
        seen: each.
        known: what was known of them before.
    """

    def __init__(self, seen: list[SeenParameter], known: KnownParameters) -> None:
        self.seen = seen
        self._known = known
        self._look = known.look([each.parameter for each in seen])
        for each in seen:
            of_it = known.of(each.parameter)
            each.rows_differ = of_it.rows_differ(each.parameter) if of_it.differs is False else of_it.differs
        known.forget_dead(len(seen))

    def after(self, reached: Collection[int] | None) -> tuple[ParameterUpdate, ...]:
        """What the update has meant to each.

        Args:
            reached: what the loss led to, by identity; None if that is not known.
        """
        look, found = self._look, []
        measured = look.measured([each.is_own for each in self.seen])
        has_gradient = look.have_gradients()
        for number, (each, now) in enumerate(zip(self.seen, measured, strict=True)):
            parameter, known, nonzero = each.parameter, self._known.of(each.parameter), now.nonzero
            quiet: float | None = None
            if nonzero == 1.0:
                known.heard, quiet = None, 0.0
            elif nonzero is not None:
                quiet = known.quiet(look, number)
            found.append(
                ParameterUpdate(
                    each.name,
                    known.shape,
                    known.dtype,
                    parameter.requires_grad,
                    each.is_owned,
                    each.held,
                    None if reached is None else id(parameter) in reached,
                    now.gradient,
                    nonzero,
                    each.is_stale if has_gradient[number] else None,
                    now.changed,
                    now.lost,
                    now.size,
                    now.mark,
                    now.mark_before,
                    each.declared,
                    quiet,
                    each.rows_differ,
                    each.is_unwritten,
                )
            )
        return tuple(found)
