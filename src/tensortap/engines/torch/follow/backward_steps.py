"""Steps of programs that have neither modules nor optimizers: each ends with a backward pass.

A pass that keeps its graph is followed by another over the same graph (a penalty, a Hessian, a second loss), and is
part of the step that ends later; unless passes keep their graphs all the time, for no reason. A pass within a
transformation of `torch.func` is over when the outermost transformation is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import eager_transforms, vmap

from tensortap.engines.torch import backward_passes
from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.glance import first_bad
from tensortap.engines.torch.guard import LOSS

__all__ = ["BackwardSteps"]

_functorch: Any = torch._C._functorch

_KEPT = 4
"""Passes that keep their graph, one after the other, after which each of them ends a step."""

_LEAVES: tuple[tuple[Any, str], ...] = (
    (eager_transforms, "_grad_decrement_nesting"),
    (eager_transforms, "_jvp_decrement_nesting"),
    (vmap, "_vmap_decrement_nesting"),
)
"""What transformations call when they are left, as far as they are not compiled."""


class BackwardSteps:
    """Tells of steps, while it listens.

    Args:
        ended: called with the number of steps that have ended, in whichever thread.

    Attributes:
        looks: whether losses, and gradients that are returned, are looked at.
        bad: what of them was bad, in words.

    >>> steps = BackwardSteps(lambda number: print("step"))
    >>> steps.listen()
    >>> x = torch.ones(2, requires_grad=True)
    >>> (slope,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
    >>> slope.sum().backward()
    step
    >>> _ = torch.func.grad(lambda x: x.square().sum())(torch.ones(2))
    step
    >>> steps.stop_listening()
    """

    def __init__(self, ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._keeps = False
        self._kept = 0
        self._is_inside = False  # a pass within a transformation that has not been left yet
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self.looks = False
        self.bad: str | None = None

    @property
    def listens(self) -> bool:
        """Whether it does."""
        return bool(self._replaced)

    def listen(self) -> None:
        """Hear of backward passes from now on."""
        backward_passes.listen(self)
        for owner, name in _LEAVES:
            if (theirs := getattr(owner, name, None)) is not None:
                ours = self._telling(theirs)
                setattr(owner, name, ours)
                self._replaced.append((owner, name, ours, theirs))

    def stop_listening(self) -> None:
        """Hear of nothing more; harmless when called again."""
        backward_passes.stop_listening(self)
        for owner, name, ours, theirs in self._replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, theirs)
        self._replaced.clear()

    def backward_begins(self, outputs: Any, accumulates: bool, keeps: bool) -> None:
        """A backward pass begins."""
        self._keeps = keeps
        if self.looks:
            self._look_at(
                [each for each in outputs if isinstance(each, torch.Tensor) and not each.dim()], LOSS
            )

    def backward_ends(self, gradients: Any) -> None:
        """It is over; these were returned."""
        if torch._C._current_autograd_node() is not None:  # a pass within a pass
            return
        if self.looks and gradients:
            self._look_at(gradients, "a gradient")
        if _functorch.peek_interpreter_stack() is not None:
            self._is_inside = True
            return
        self._kept = self._kept + 1 if self._keeps else 0
        if not self._keeps or self._kept > _KEPT:
            self._ended(self._kept if self._kept == _KEPT + 1 else 1)  # each of them was one

    def _telling(self, leave: Callable[[], Any]) -> Any:
        @functools.wraps(leave)
        def leave_and_tell() -> Any:
            level = leave()
            if self._is_inside and _functorch.peek_interpreter_stack() is None:
                self._is_inside = False
                self._ended(1)
            return level

        told: Any = never_compiled(leave_and_tell)  # type: ignore[type-var]
        return told

    def _look_at(self, tensors: Any, what: str) -> None:
        try:
            values = [_innermost(each) for each in tensors if isinstance(each, torch.Tensor)]
            if self.bad is None and first_bad(values) is not None:
                self.bad = what
        except Exception:  # ours, and no reason to lose a backward pass
            return


def _innermost(tensor: Any) -> Any:
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor
