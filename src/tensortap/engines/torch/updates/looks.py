"""A look at all parameters around an update: samples before and after it, read all at once where that can be."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from tensortap.engines.torch.memory import asking_no_class, is_ordinary, readable
from tensortap.engines.torch.updates.samples import MOST_ELEMENTS, mark_of, sample_of
from tensortap.errors import NativeBuildError

__all__ = ["Look", "Room", "native", "signature_of"]

_FEWEST, _MOST_IN_ALL = 64, 1 << 20
"""Elements: of one tensor, however many there are, and of all together as long as each has that many."""

_UNREAD, _MISSING = -1, -2
_BEFORE, _GRADIENT, _NOW = 0, 2, 4
_COLUMNS = 6
"""Of a parameter: where each of its three samples begins, and how many elements it has."""

Column = np.ndarray[Any, Any]
Numbers = dict[str, Column]
Marks = dict[str, Column | list[Any]]

_NUMBERS = ("size", "gradient", "nonzero", "changed", "lost")
_MARKS = ("mark_before", "mark")
_ROW = np.dtype([*((name, np.float64) for name in _NUMBERS), *((name, np.uint64) for name in _MARKS)])
"""What an update has meant to a parameter, see `ParameterUpdate`: NaN, or no mark, where that is not known."""


class Room:
    """Memory for a look, used again by the next: fresh pages of the kernel are dearer than all that is written there.

    Args:
        parameters: how many there is room for.
        most: elements of one sample.
    """

    def __init__(self, parameters: int, most: int) -> None:
        self.values = np.empty(3 * most * parameters, np.float64)
        self.places = np.zeros((parameters, _COLUMNS), np.int64)
        self.owned = np.zeros(parameters, np.uint8)
        self.found = np.zeros(parameters, _ROW)
        self.at_values, self.at_places = self.values.ctypes.data, self.places.ctypes.data
        self.at_owned, self.at_found = self.owned.ctypes.data, self.found.ctypes.data

    def fits(self, parameters: int, most: int) -> bool:
        """Whether a look finds room."""
        return len(self.values) >= 3 * most * parameters and len(self.places) >= parameters


class Look:
    """Samples of parameters and their gradients as they are before an update.

    Args:
        parameters: all that are looked at.
        room: of another look that is over, to be used again.
        are_ordinary: whether all of them stand for themselves, if somebody knows.

    Attributes:
        room: where samples are.

    >>> weight = torch.ones(4, requires_grad=True)
    >>> weight.sum().backward()
    >>> look = Look([weight])
    >>> weight.data[0] = 2
    >>> numbers, _ = look.measured([True])
    >>> numbers["changed"].tolist(), numbers["lost"].tolist()
    ([0.25], [0.75])
    """

    def __init__(
        self, parameters: list[torch.Tensor], room: Room | None = None, are_ordinary: bool | None = None
    ) -> None:
        self._parameters = parameters
        self._are_ordinary = all(map(is_ordinary, parameters)) if are_ordinary is None else are_ordinary
        self._most = max(_FEWEST, min(MOST_ELEMENTS, _MOST_IN_ALL // max(1, len(parameters))))
        if room is None or not room.fits(len(parameters), self._most):
            room = Room(len(parameters), self._most)
        self.room = room
        self._values, self._places = room.values, room.places[: len(parameters)]
        self._end = 0
        self._take(_BEFORE)
        self._take(_GRADIENT)
        self._ends_before = self._end

    def have_gradients(self) -> list[bool]:
        """Of each parameter, whether it has one."""
        found: list[bool] = (self._places[:, _GRADIENT + 1] != _MISSING).tolist()
        return found

    def gradient(self, number: int) -> np.ndarray[Any, Any] | None:
        """The sample of a parameter's gradient; None if there is none, or it cannot be read."""
        begin, count = self._places[number, _GRADIENT : _GRADIENT + 2]
        return self._values[begin : begin + count] if count > 0 else None

    def measured(self, own: Sequence[bool]) -> tuple[Numbers, Marks]:
        """What has become of each of them, by columns: numbers and marks.

        Args:
            own: whether it was this update that changed it, if it has changed.
        """
        self._end = self._ends_before
        self._take(_NOW)
        measure = native("tt_measure")
        if measure is None:
            return self._measured_plainly(own)
        room = self.room
        room.owned[: len(own)] = own
        measure(room.at_places, len(own), room.at_values, room.at_owned, room.at_found)
        found = room.found[: len(own)]
        return {name: found[name].copy() for name in _NUMBERS}, {name: found[name].copy() for name in _MARKS}

    def _take(self, column: int) -> None:
        of_gradients = column == _GRADIENT
        take = native("tt_samples")
        taken = self._places[:, column + 1]
        if take is None:
            taken[:] = _UNREAD
        else:
            room, begin = self.room, self._end
            places = room.at_places + 8 * column
            tensors: Sequence[torch.Tensor | None] = self._parameters
            follows = of_gradients
            if not self._are_ordinary:
                tensors, follows = self._inside(of_gradients), False
            self._end = take(tensors, follows, self._most, room.at_values, begin, places, _COLUMNS)
        if _UNREAD not in taken:
            return
        for number in np.flatnonzero(taken == _UNREAD).tolist():
            parameter = self._parameters[number]
            tensor = parameter.grad if of_gradients else parameter
            self._places[number, column : column + 2] = self._taken_singly(tensor)

    @asking_no_class
    def _inside(self, of_gradients: bool) -> list[torch.Tensor | None]:
        """What stands for wrappers among the parameters, or their gradients."""
        tensors = [each.grad for each in self._parameters] if of_gradients else self._parameters
        return [each if each is None or is_ordinary(each) else _or_itself(each) for each in tensors]

    def _taken_singly(self, tensor: torch.Tensor | None) -> tuple[int, int]:
        if tensor is None:
            return 0, _MISSING
        sample = sample_of(tensor, self._most)
        if sample is None or sample.dtype.kind not in "fiubc":
            return 0, 0
        begin, count = self._end, min(len(sample), self._most)
        numbers = np.abs(sample) if sample.dtype.kind == "c" else sample
        self._values[begin : begin + count] = numbers[:count]
        self._end += count
        return begin, count

    def _measured_plainly(self, own: Sequence[bool]) -> tuple[Numbers, Marks]:
        """The same without the observer's library."""
        numbers = np.full((len(own), len(_NUMBERS)), np.nan)
        marks: dict[str, list[str | None]] = {name: [] for name in _MARKS}
        for place, (row, is_own) in enumerate(zip(self._places.tolist(), own, strict=True)):
            before, gradient, now = (
                self._values[begin : begin + count] if count > 0 else None
                for begin, count in zip(row[::2], row[1::2], strict=True)
            )
            numbers[place] = _measured(before, gradient, now if is_own else None)
            marks["mark_before"].append(mark_of(before))
            marks["mark"].append(mark_of(now))
        return {name: numbers[:, column] for column, name in enumerate(_NUMBERS)}, dict(marks)


def _measured(before: Column | None, gradient: Column | None, now: Column | None) -> tuple[float, ...]:
    size = largest = nonzero = changed = lost = math.nan
    if before is not None:
        size = float(np.sqrt(np.mean(np.square(before))))
    if gradient is not None:
        largest = float(np.abs(gradient).max())
        nonzero = np.count_nonzero(gradient) / len(gradient)
    if now is not None and before is not None and now.shape == before.shape:
        moved = now != before
        changed = np.count_nonzero(moved) / len(now)
        if gradient is not None and gradient.shape == now.shape:
            lost = np.count_nonzero(~moved & (gradient != 0)) / len(now)
    return size, largest, nonzero, changed, lost


def _or_itself(wrapper: torch.Tensor) -> torch.Tensor:
    inside = readable(wrapper)
    return wrapper if inside is None else inside


@functools.cache
def native(name: str) -> Any:
    """A function of the observer; None where that cannot be built."""
    try:
        from tensortap.engines.torch.observer.library import library

        return getattr(library(), name)
    except NativeBuildError:
        return None


def signature_of(roots: list[nn.Module], lists: list[list[torch.Tensor]]) -> tuple[int, int]:
    """What tells whether modules and lists have the parameters they had, and how many modules are not in training mode.

    The first is 0 if that cannot be told, the second negative if nobody has counted.
    """
    find = native("tt_signature")
    found: tuple[int, int] = (0, -1) if find is None else find(roots, lists)
    return found
