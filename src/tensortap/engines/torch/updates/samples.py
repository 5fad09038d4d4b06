"""Samples of tensors: some elements at even distances, read from memory without an operation where that can be."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from tensortap.engines.torch.memory import asking_no_class, readable
from tensortap.engines.torch.values import view_of

__all__ = ["mark_of", "number_of", "sample_of"]

MOST_ELEMENTS = 1024
"""Of one tensor: enough to tell shares of a per mille, and few enough for models of thousands of tensors."""


@asking_no_class
def sample_of(tensor: torch.Tensor, most: int = MOST_ELEMENTS) -> np.ndarray[Any, Any] | None:
    """Elements of a tensor, those of 16 bits and less as float32; None if it cannot be read.

    Args:
        tensor: of any kind.
        most: so many of them.

    >>> sample_of(torch.arange(3.0)).tolist()
    [0.0, 1.0, 2.0]
    """
    elements = readable(tensor)
    if elements is None:
        return None
    if elements.is_sparse:
        elements = elements._values()
    number = elements.numel()
    if not number:
        return None
    # Odd: elements at an even distance may all be of one column.
    distance = 1 if number <= most else -(-number // most) | 1
    if not elements.is_cpu:
        return _from_device(elements, distance)
    array = view_of(elements).to_numpy()
    if array.flags.c_contiguous:
        chosen = array.reshape(-1)[::distance]
    elif array.T.flags.c_contiguous:
        chosen = array.T.reshape(-1)[::distance]
    else:
        chosen = array[np.unravel_index(np.arange(0, number, distance), array.shape)]
    return _plain(chosen)


def _from_device(elements: torch.Tensor, distance: int) -> np.ndarray[Any, Any]:
    """The same by operations that nobody hears of, because the elements are on a device of their own."""
    torch.autograd._enable_record_function(False)  # type: ignore[attr-defined]
    try:
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            chosen = elements.detach().reshape(-1)[::distance]
            floats = chosen.is_floating_point() and chosen.dtype != torch.float64
            copied = (chosen.float() if floats else chosen).cpu()
            return _plain(view_of(copied).to_numpy())
    finally:
        torch.autograd._enable_record_function(True)  # type: ignore[attr-defined]


def _plain(chosen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if chosen.dtype.kind in "fiubc" and chosen.dtype.itemsize != 2:
        return chosen.copy()
    return chosen.astype(np.float32)


def mark_of(sample: np.ndarray[Any, Any] | None) -> str | None:
    """A text that is the same for the same elements."""
    return None if sample is None else hashlib.blake2b(sample.tobytes(), digest_size=8).hexdigest()


def number_of(value: Any) -> float | None:
    """A plain number, or the only element of a tensor."""
    if isinstance(value, torch.Tensor):
        sample = sample_of(value) if value.numel() == 1 else None
        return None if sample is None else float(sample[0])
    return float(value) if isinstance(value, (int, float, np.floating, np.integer)) else None
