"""The fastest look there is at whether tensors are finite: memory is read once, and no operation is executed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import torch

from tensortap.engines.torch.memory import asking_no_class, readable
from tensortap.engines.torch.values import view_of
from tensortap.errors import NativeBuildError
from tensortap.ops import kernel

__all__ = ["first_bad", "has_nan", "is_bad", "tensors_in"]

_NAN, _NEGATIVE_INFINITY, _POSITIVE_INFINITY = 2, 3, 7

_MOST_TENSORS = 64
"""Of one result that are looked at."""


def first_bad(
    tensors: list[torch.Tensor], with_gradients: bool = False, excused: Container[torch.Tensor] = ()
) -> tuple[torch.Tensor, bool] | None:
    """The first tensor that holds NaN or infinities, or whose gradient does (then True), as far as can be read.

    Args:
        tensors: looked at in this order.
        with_gradients: look at their gradients, too.
        excused: these may be bad; their gradients may not.

    >>> first_bad([torch.zeros(2), torch.tensor([1.0, torch.nan])])
    (tensor([1., nan]), False)
    """
    unread: list[int] = []
    number = _look()(tensors, with_gradients, unread)
    if number == -1 and not unread:
        return None
    if number >= 0:
        found = (tensors[number // 2], bool(number % 2)) if with_gradients else (tensors[number], False)
        if found[1] or found[0] not in excused:
            return _first_bad_singly(tensors, with_gradients, excused, unread) or found
    return _first_bad_singly(tensors, with_gradients, excused, None if number != -1 else unread)


@asking_no_class
def _first_bad_singly(
    tensors: list[torch.Tensor],
    with_gradients: bool,
    excused: Container[torch.Tensor],
    unread: list[int] | None,
) -> tuple[torch.Tensor, bool] | None:
    """The same for those that do not lie in memory as they are, or for all of them, because some are excused."""
    if unread is None:
        unread = list(range(2 * len(tensors) if with_gradients else len(tensors)))
    for each in sorted(unread):
        tensor, in_gradient = (
            (tensors[each // 2], bool(each % 2)) if with_gradients else (tensors[each], False)
        )
        suspect = tensor.grad if in_gradient else None if tensor in excused else tensor
        if suspect is not None and is_bad(suspect):
            return tensor, in_gradient
    return None


@functools.cache
def _look() -> Callable[[list[torch.Tensor], bool, list[int]], int]:
    """Reads them all at once, where that can be."""
    try:
        from tensortap.engines.torch.observer.library import library

        look: Callable[[list[torch.Tensor], bool, list[int]], int] = library().tt_first_not_finite
    except NativeBuildError:
        return lambda tensors, with_gradients, unread: -2
    return look


def is_bad(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds NaN or infinities, as far as it can be read.

    >>> is_bad(torch.tensor([1.0, torch.inf]))
    True
    """
    pill = _pill(tensor)
    return pill is not None and bool(pill[_NAN] or pill[_NEGATIVE_INFINITY] or pill[_POSITIVE_INFINITY])


def has_nan(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds NaN, as far as it can be read.

    >>> has_nan(torch.tensor([1.0, torch.inf]))
    False
    """
    pill = _pill(tensor)
    return pill is not None and bool(pill[_NAN])


def tensors_in(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """The tensors of what a function has returned.

    >>> list(tensors_in({"loss": torch.tensor(1.0), "more": ("text", [torch.tensor(2.0)])}))
    [tensor(1.), tensor(2.)]
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping | list | tuple):
        parts = value.values() if isinstance(value, Mapping) else value
        for each in list(parts)[:_MOST_TENSORS]:
            yield from tensors_in(each, depth - 1)


def _pill(tensor: torch.Tensor) -> Any:
    elements = readable(tensor)
    if elements is None:
        return None
    # Those of a sparse one as they are: to sort them would be work for nothing.
    return kernel.summary(view_of(elements._values() if elements.is_sparse else elements))
