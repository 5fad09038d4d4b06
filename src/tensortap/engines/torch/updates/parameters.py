"""Parameters before and after an update."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from tensortap.engines.torch.memory import is_ordinary
from tensortap.engines.torch.updates.looks import Look, Room
from tensortap.engines.torch.updates.rows import rows_differ
from tensortap.engines.torch.values import dtype_name, shape_of
from tensortap.records import ParameterTable

__all__ = ["KnownParameters", "ListedParameters", "SeenParameters"]

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

    def look(self, parameters: list[torch.Tensor], are_ordinary: bool) -> Look:
        """Take samples; what was taken before is gone then."""
        look = Look(parameters, self._room, are_ordinary)
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


class ListedParameters:
    """The parameters of an optimizer and of all models, as long as these have the same ones.

    Args:
        signature: of what they have; 0 if it is not to be compared.
        names: in the graph.
        parameters: themselves.
        is_owned: whether a known model has each.
        held: the optimizers that have each.
        is_own: whether the optimizer that steps has each.
        known: what is remembered of them.
    """

    def __init__(
        self,
        signature: int,
        names: list[str],
        parameters: list[torch.Tensor],
        is_owned: list[bool],
        held: list[tuple[str, ...]],
        is_own: list[bool],
        known: KnownParameters,
    ) -> None:
        self.names, self.is_owned, self.held, self.is_own = names, is_owned, held, is_own
        self._signature = signature
        self.known = [known.of(each) for each in parameters]
        self.shapes = [each.shape for each in self.known]
        self.dtypes = [each.dtype for each in self.known]
        self.trains = [each.requires_grad for each in parameters]
        self.are_ordinary = all(map(is_ordinary, parameters))
        known.forget_dead(len(parameters))

    def still(self, signature: int) -> list[torch.Tensor] | None:
        """The parameters, if they are as they were listed."""
        if not signature or signature != self._signature:
            return None
        parameters = [parameter for each in self.known if (parameter := each.ref()) is not None]
        return parameters if len(parameters) == len(self.known) else None


class SeenParameters:
    """Parameters that are about to be updated, or to be left as they are.

    Args:
        listed: what is known of them.
        parameters: themselves.
        is_stale: whether the gradient of each holds what was applied before.
        known: gives room.

    Attributes:
        declared: where some of them come from, by their place, if somebody has found out.
        is_unwritten: whether nobody has written to the memory of each, if somebody has found out.
        rows_differ: whether the rows of each differ from each other; None if it has none.
    """

    def __init__(
        self,
        listed: ListedParameters,
        parameters: list[torch.Tensor],
        is_stale: list[bool],
        known: KnownParameters,
    ) -> None:
        self.listed = listed
        self.parameters = parameters
        self.declared: dict[int, str] = {}
        self.is_unwritten: list[bool | None] = []
        self._is_stale = is_stale
        self._look = known.look(parameters, listed.are_ordinary)
        self.rows_differ = [
            known.rows_differ(each) if known.differs is False else known.differs
            for known, each in zip(listed.known, parameters, strict=True)
        ]

    def after(self, reached: Collection[int] | None) -> ParameterTable:
        """What the update has meant to each.

        Args:
            reached: what the loss led to, by identity; None if that is not known.
        """
        listed, look = self.listed, self._look
        numbers, marks = look.measured(listed.is_own)
        each: dict[str, list[Any]] = {
            "name": listed.names,
            "shape": listed.shapes,
            "dtype": listed.dtypes,
            "trains": listed.trains,
            "is_owned": listed.is_owned,
            "held": listed.held,
            "is_reached": [None if reached is None else id(each) in reached for each in self.parameters],
            "is_stale": [
                stale if has else None
                for stale, has in zip(self._is_stale, look.have_gradients(), strict=True)
            ],
            "declared": [self.declared.get(place) for place in range(len(listed.names))],
            "quiet": self._quiet(numbers["nonzero"]),
            "rows_differ": self.rows_differ,
            "is_unwritten": self.is_unwritten or [None] * len(listed.names),
        }
        same = {
            key: column[0]
            for key, column in each.items()
            if column and column.count(column[0]) == len(column)
        }
        same.pop("name", None)
        return ParameterTable(same, {key: each[key] for key in each if key not in same} | numbers | marks)

    def _quiet(self, nonzero: np.ndarray[Any, Any]) -> list[float | None]:
        found: list[float | None] = []
        for place, (known, share) in enumerate(zip(self.listed.known, nonzero.tolist(), strict=True)):
            if share == 1.0:
                known.heard = None
                found.append(0.0)
            else:
                found.append(None if math.isnan(share) else known.quiet(self._look, place))
        return found
