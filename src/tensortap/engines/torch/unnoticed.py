"""Looking at tensors so that the program's own observers do not notice."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["unnoticed"]


def unnoticed() -> Any:
    """A block in which what is done with tensors goes to no `__torch_function__`, of a mode or of a subclass.

    >>> class Counting(torch.overrides.TorchFunctionMode):
    ...     def __torch_function__(self, func, types, args=(), kwargs=None):
    ...         print("somebody looks")
    ...         return func(*args, **(kwargs or {}))
    >>> tensor = torch.zeros(3)
    >>> with Counting(), unnoticed():
    ...     tensor.shape
    torch.Size([3])
    """
    return torch._C.DisableTorchFunction()
