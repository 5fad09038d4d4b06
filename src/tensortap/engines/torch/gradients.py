"""When the gradient of a parameter is complete: autograd has put it in place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tensortap.engines.torch.forks import generation
from tensortap.engines.torch.program import Program
from tensortap.engines.torch.tracing import is_being_traced

__all__ = ["gradients_announced"]

OnGradient = Callable[[str, torch.Tensor], None]
"""`on_gradient(path, parameter)`: the parameter's `grad` is complete."""


_registering = threading.Lock()
"""Threads may run one session: what one takes off a parameter, another may be just adding to."""


@contextmanager
def gradients_announced(program: Program, on_gradient: OnGradient) -> Iterator[None]:
    """Call a function for every gradient that becomes complete in the block, in this thread and process."""
    hooked: list[tuple[nn.Parameter, Any]] = []
    try:
        with _registering, torch._C.DisableTorchFunctionSubclass():
            for path, parameter in program.parameters():
                if parameter.requires_grad and parameter.is_leaf:
                    register: Any = parameter.register_post_accumulate_grad_hook
                    hooked.append((parameter, register(_hook(path, on_gradient))))
        yield
    finally:
        with _registering, torch._C.DisableTorchFunctionSubclass():
            for parameter, handle in hooked:
                handle.remove()
                if not parameter._post_accumulate_grad_hooks:
                    # Leave the parameter as it was: an empty dict would look like a change to torch.compile.
                    parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]


def _hook(path: str, on_gradient: OnGradient) -> Callable[[torch.Tensor], None]:
    owner = (threading.get_ident(), generation())

    def gradient_is_complete(parameter: torch.Tensor) -> None:
        # Else of another thread, or of a forked child.
        if (threading.get_ident(), generation()) == owner and not is_being_traced():
            with torch._C.DisableTorchFunctionSubclass():
                on_gradient(path, parameter)

    return gradient_is_complete
