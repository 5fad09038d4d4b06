"""Looking at tensors so that the program's own observers do not notice."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["is_tracing", "unnoticed"]


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


def is_tracing() -> bool:
    """Whether `torch.jit.trace` is at work: whatever looks at a tensor then becomes part of the trace."""
    return torch._C._get_tracing_state() is not None
