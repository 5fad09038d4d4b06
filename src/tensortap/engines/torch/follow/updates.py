"""A look at the gradients before an optimizer applies them, for programs that are to be kept from a bad update."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer

from tensortap.engines.torch.glance import first_bad

__all__ = ["ask_before_steps", "has_bad_gradient"]


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
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return first_bad([each.grad for each in parameters if each.grad is not None]) is not None
