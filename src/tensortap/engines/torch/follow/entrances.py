"""Where a follower enters PyTorch: functions that have to tell of what a program does and that no hook tells of."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

__all__ = ["Entrances"]


class Entrances:
    """Functions of PyTorch, replaced by ones that tell of their calls, until they are put back.

    Args:
        on_optimizer: called with every optimizer that is made, and the frame that makes it.
        steps: counts the steps of optimizers.
        on_skipped_step: called with an optimizer whose step a gradient scaler has left out.
        before_tracing: called before a program is traced.
    """

    def __init__(
        self,
        on_optimizer: Callable[[Optimizer, FrameType], None],
        steps: Callable[[], Any],
        on_skipped_step: Callable[[Optimizer], None],
        before_tracing: Callable[[], None],
    ) -> None:
        make: Any = Optimizer.__init__
        scaled_step: Any = torch.amp.GradScaler.step

        @functools.wraps(make)
        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            on_optimizer(optimizer, sys._getframe(1))

        @functools.wraps(scaled_step)
        def step_or_skip(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = steps()
            result = scaled_step(scaler, optimizer, *args, **kwargs)
            if before == steps():
                on_skipped_step(optimizer)
            return result

        def after(tell: Callable[[], None], function: Any) -> Any:
            @functools.wraps(function)
            def called(*args: Any, **kwargs: Any) -> Any:
                tell()
                return function(*args, **kwargs)

            return called

        self._replaced: list[tuple[Any, str, Any, Any]] = [
            (Optimizer, "__init__", made, make),
            (torch.amp.GradScaler, "step", step_or_skip, scaled_step),
            *(
                (torch.jit, name, after(before_tracing, getattr(torch.jit, name)), getattr(torch.jit, name))
                for name in ("trace", "trace_module")
            ),
        ]
        for owner, name, ours, _ in self._replaced:
            setattr(owner, name, ours)

    def close(self) -> None:
        """Put PyTorch's own back, where ours still are."""
        for owner, name, ours, theirs in self._replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, theirs)
