"""When the gradient of a parameter is complete: autograd has put it in place."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tensortap.engines.torch.forks import generation
from tensortap.engines.torch.program import Program
from tensortap.engines.torch.tracing import is_being_traced

__all__ = ["GradientHooks", "gradients_announced"]

OnGradient = Callable[[str, torch.Tensor], None]
"""`on_gradient(path, parameter)`: the parameter's `grad` is complete."""


_registering = threading.Lock()
"""Threads may run one session: what one takes off a parameter, another may be just adding to."""


class GradientHooks:
    """Hooks on the parameters of a program, which live as long as the program wants."""

    def __init__(self) -> None:
        self._hooked: list[tuple[weakref.ref[torch.Tensor], Any]] = []

    def add(self, program: Program, hook_for: Callable[[str], Callable[[torch.Tensor], Any]]) -> None:
        """Have `hook_for(path)` called with each parameter whose gradient becomes complete."""
        with _registering, torch._C.DisableTorchFunctionSubclass():
            for path, parameter in program.parameters():
                if parameter.requires_grad and parameter.is_leaf:
                    register: Any = parameter.register_post_accumulate_grad_hook
                    self._hooked.append((weakref.ref(parameter), register(hook_for(path))))

    def remove(self) -> None:
        """Leave the parameters as they were: an empty dict would look like a change to torch.compile."""
        with _registering, torch._C.DisableTorchFunctionSubclass():
            for reference, handle in self._hooked:
                handle.remove()
                parameter = reference()
                if parameter is not None and not parameter._post_accumulate_grad_hooks:
                    parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]
            self._hooked.clear()


@contextmanager
def gradients_announced(program: Program, on_gradient: OnGradient) -> Iterator[None]:
    """Call a function for every gradient that becomes complete in the block, in this thread and process."""
    hooks = GradientHooks()
    try:
        hooks.add(program, lambda path: _hook(path, on_gradient))
        yield
    finally:
        hooks.remove()


def _hook(path: str, on_gradient: OnGradient) -> Callable[[torch.Tensor], None]:
    owner = (threading.get_ident(), generation())

    def gradient_is_complete(parameter: torch.Tensor) -> None:
        # Else of another thread, or of a forked child.
        if (threading.get_ident(), generation()) == owner and not is_being_traced():
            with torch._C.DisableTorchFunctionSubclass():
                on_gradient(path, parameter)

    return gradient_is_complete
