"""What an update meant to parameters: one by one, and as columns, because a model may have thousands."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, overload

import numpy as np

from tensortap.records.node import Frame

__all__ = ["ParameterTable", "ParameterUpdate", "read_parameters", "told_parameters"]

Column = np.ndarray[Any, Any]


class ParameterUpdate(NamedTuple):
    """What an update meant to one parameter. Shares and sizes are those of a sample of its elements.

    Attributes:
        name: as in the graph; of a tensor that no known model has, `optimizer/<name>/<number>`.
        shape: of it.
        dtype: of it.
        trains: whether it asks for gradients.
        is_owned: whether a known model has it.
        held: the optimizers that have it.
        is_reached: whether the loss leads to it.
        gradient: the largest magnitude in its gradient, as the step found it; None if it had none.
        nonzero: the share of its gradient that is not zero.
        is_stale: the gradient still holds what an earlier step has applied.
        changed: the share of it that the step changed.
        lost: the share of it that has a gradient and did not change.
        size: root of its mean square before the step.
        mark: of its values after the step; two that are the same have the same values.
        mark_before: of its values before the step.
        declared: the user's line that gives it, or the module it is in, to its owner; told if it gets no gradient.
        quiet: the share of its gradient that was zero in each of the last eight updates that were looked at.
        rows_differ: whether its rows differ from each other by more than rounding.
        is_unwritten: nobody has written to the memory that it was made of; told with the first update.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    trains: bool = True
    is_owned: bool = True
    held: tuple[str, ...] = ()
    is_reached: bool | None = None
    gradient: float | None = None
    nonzero: float | None = None
    is_stale: bool | None = None
    changed: float | None = None
    lost: float | None = None
    size: float | None = None
    mark: str | None = None
    mark_before: str | None = None
    declared: str | None = None
    quiet: float | None = None
    rows_differ: bool | None = None
    is_unwritten: bool | None = None

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.shape)

    @property
    def source(self) -> Frame | None:
        """Where it is declared."""
        return Frame.of_text(self.declared) if isinstance(self.declared, str) else None


_KEYS = ParameterUpdate._fields
_DEFAULTS = tuple(ParameterUpdate._field_defaults.get(key) for key in _KEYS)
_USUAL = dict(zip(_KEYS, _DEFAULTS, strict=True))
_MARKS = ("mark", "mark_before")


class ParameterTable(Sequence[ParameterUpdate]):
    """Parameters by columns; each of them is made when it is asked for.

    Args:
        same: what all have in common, by field.
        each: lists of what they differ in; or arrays, NaN or a mark of 0 standing for what is not known.

    >>> table = ParameterTable({"dtype": "float32"}, {"name": ["a", "b"], "size": np.array([1.5, np.nan])})
    >>> [(one.name, one.dtype, one.size) for one in table]
    [('a', 'float32', 1.5), ('b', 'float32', None)]
    """

    __slots__ = ("_count", "_each", "_same")

    def __init__(self, same: Mapping[str, Any], each: Mapping[str, list[Any] | Column]) -> None:
        self._same = same
        self._each = each
        self._count = len(each["name"])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ParameterUpdate]:
        columns = [
            _plain(self._each[key])
            if key in self._each
            else repeat(self._same.get(key, _USUAL[key]), self._count)
            for key in _KEYS
        ]
        return map(ParameterUpdate, *columns)

    @overload
    def __getitem__(self, place: int) -> ParameterUpdate: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[ParameterUpdate, ...]: ...
    def __getitem__(self, place: Any) -> Any:
        return tuple(self)[place]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: arrays as their bytes, which are neither made numbers nor read as such one by one."""
        plain = {key: column for key, column in self._each.items() if isinstance(column, list)}
        packed = {
            key: base64.b64encode(column.astype(_kind_of(key), copy=False).tobytes()).decode()
            for key, column in self._each.items()
            if not isinstance(column, list)
        }
        return {"same": dict(self._same), "each": plain, "packed": packed}


def told_parameters(parameters: Sequence[ParameterUpdate]) -> Any:
    """For JSON; what is as it would be by default is left out."""
    if isinstance(parameters, ParameterTable):
        return parameters.as_dict()
    return [
        {key: value for key, value, usual in zip(_KEYS, each, _DEFAULTS, strict=True) if value != usual}
        for each in parameters
    ]


def read_parameters(told: Any) -> tuple[ParameterUpdate, ...]:
    """From JSON, of either form; what is not known here is ignored.

    >>> table = ParameterTable({"held": ("SGD",)}, {"name": ["a", "b"], "mark": np.array([7, 0], np.uint64)})
    >>> read_parameters(table.as_dict()) == tuple(table) == read_parameters(told_parameters([*table]))
    True
    """
    if not isinstance(told, Mapping):
        return tuple([_parameter_of(each) for each in told])
    same = {key: value for key, value in told["same"].items() if key in _USUAL}
    each = {key: list(column) for key, column in told["each"].items() if key in _USUAL}
    for key, packed in told["packed"].items():
        if key in _USUAL:
            each[key] = _plain(np.frombuffer(base64.b64decode(packed), _kind_of(key)))
    if any(len(column) != len(each["name"]) for column in each.values()):
        raise ValueError("Columns of parameters are not of the same length.")
    for key in ("shape", "held"):
        if key in same:
            same[key] = tuple(same[key])
        if key in each:
            each[key] = [tuple(value) for value in each[key]]
    return tuple(ParameterTable(same, each))


def _parameter_of(told: Mapping[str, Any]) -> ParameterUpdate:
    whole = {
        **_USUAL,
        **told,
    }  # in the order of the fields, with few calls: there may be thousands in an update
    if len(whole) > len(_KEYS):
        whole = {key: whole[key] for key in _KEYS}
    whole["name"], whole["shape"], whole["held"] = told["name"], tuple(whole["shape"]), tuple(whole["held"])
    return ParameterUpdate(*whole.values())


def _kind_of(key: str) -> str:
    return "<u8" if key in _MARKS else "<f8"


def _plain(column: list[Any] | Column) -> list[Any]:
    """An array as a list, None where it holds nothing."""
    if isinstance(column, list):
        return column
    if column.dtype.kind == "u":
        return [f"{mark:016x}" if mark else None for mark in column.tolist()]
    numbers: list[Any] = column.tolist()
    for place in np.flatnonzero(~np.isfinite(column)).tolist():
        numbers[place] = None
    return numbers
