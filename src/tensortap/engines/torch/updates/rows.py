"""Rows of weights: whether they differ from each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensortap.engines.torch.memory import asking_no_class, readable
from tensortap.engines.torch.values import view_of

__all__ = ["rows_differ"]

_MOST_COMPARED = 1 << 20
_ALIKE = 1e-4
"""Products of equal rows may differ in their last digits, as matrices are multiplied in blocks."""


@asking_no_class
def rows_differ(parameter: torch.Tensor) -> bool | None:
    """Whether the rows of a matrix differ from each other; None if it is none, is empty, or cannot be read.

    >>> rows_differ(torch.ones(3, 4)), rows_differ(torch.eye(3, 4)), rows_differ(torch.ones(3))
    (False, True, None)
    """
    if (
        parameter.dim() < 2
        or parameter.shape[0] < 2
        or not parameter.is_cpu
        or not parameter.is_floating_point()
    ):
        return None
    plain = readable(parameter)
    if plain is None or plain.is_sparse or plain.numel() > _MOST_COMPARED * plain.shape[0]:
        return None
    array = view_of(plain).to_numpy()
    if not _are_alike(array[1], array[0]):
        return True
    return None if plain.numel() > _MOST_COMPARED else not _are_alike(array, array[:1])


def _are_alike(rows: np.ndarray[Any, Any], first: np.ndarray[Any, Any]) -> bool:
    rows, first = rows.astype(np.float64), first.astype(np.float64)
    return bool(np.abs(rows - first).max() <= _ALIKE * np.abs(first).max())
