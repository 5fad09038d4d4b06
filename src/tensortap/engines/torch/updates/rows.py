"""Rows of weights: which have never had a gradient, and whether they differ from each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from tensortap.engines.torch.memory import asking_no_class, readable
from tensortap.engines.torch.values import view_of

__all__ = ["QuietGradients", "rows_differ"]

_MOST_COMPARED = 1 << 20


class QuietGradients:
    """Remembers which sampled elements of each gradient have been zero in every update."""

    def __init__(self) -> None:
        self._heard: Any = WeakIdKeyDictionary()

    def share_of(self, parameter: torch.Tensor, gradient: np.ndarray[Any, Any] | None) -> float | None:
        """The share of those elements, this update included; None without a gradient.

        >>> quiet, weight = QuietGradients(), torch.ones(2)
        >>> quiet.share_of(weight, np.array([0.0, 1.0])), quiet.share_of(weight, np.array([1.0, 0.0]))
        (0.5, 0.0)
        """
        if gradient is None:
            return None
        heard = self._heard.get(parameter)
        now = gradient != 0
        if heard is not None and heard.shape == now.shape:
            now |= heard
        self._heard[parameter] = now
        return 1 - float(np.count_nonzero(now)) / len(now)


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
    if (array[0] != array[1]).any():
        return True
    if plain.numel() > _MOST_COMPARED:
        return None
    return bool((array != array[:1]).any())
