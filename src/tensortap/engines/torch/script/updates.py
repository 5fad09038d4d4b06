"""A look at the gradients before an optimizer applies them, for programs that are to be kept from a bad update."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from tensortap import pill
from tensortap.engines.torch.memory import readable
from tensortap.engines.torch.values import view_of
from tensortap.ops import kernel

__all__ = ["ask_before_steps", "has_bad_gradient", "is_bad"]


def ask_before_steps(optimizer: Optimizer, may_step: Callable[[Optimizer], bool]) -> None:
    """Have an optimizer step only if it may. A step with a closure works gradients out itself and is not asked about.

    In the instance, as schedulers of learning rates do it, who expect to find a method there.
    """
    step = optimizer.step

    def step_if_allowed(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not (args or kwargs) and not may_step(self):
            return None
        return step(*args, **kwargs)

    step_if_allowed.__dict__.update(getattr(step, "__dict__", {}))
    optimizer.step = types.MethodType(step_if_allowed, optimizer)  # type: ignore[method-assign]


def has_bad_gradient(optimizer: Optimizer) -> bool:
    """Whether a gradient that is about to be applied holds NaN or infinities."""
    return any(
        parameter.grad is not None and is_bad(parameter.grad)
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def is_bad(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds NaN or infinities, as far as it can be read."""
    if readable(tensor) is None:
        return False
    return pill.is_bad(kernel.summary(view_of(tensor)))
