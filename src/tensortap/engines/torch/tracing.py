"""While `torch.jit.trace` records, nothing is watched.

It writes down what the thread does to tensors, asking for a shape included, and finds the names of values in Python's
frames: whatever we did then would become part of the program's trace. A dispatch mode alone makes it lose convolutions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily

__all__ = ["is_being_traced", "set_aside_while_traced"]

_RECORDERS = (
    (torch._C, "_create_function_from_trace"),
    (torch._C, "_create_function_from_trace_with_dict"),
    (torch._C, "_create_graph_by_tracing"),
    (torch._C.ScriptModule, "_create_method_from_trace"),
    (torch._C.ScriptModule, "_create_method_from_trace_with_dict"),
)
"""All that record a trace: each is given a function, which it calls."""


def is_being_traced() -> bool:
    """Whether this thread is recorded by `torch.jit.trace`."""
    return torch._C._get_tracing_state() is not None


@contextmanager
def set_aside_while_traced(mode: TorchDispatchMode) -> Iterator[None]:
    """Take a mode away from whatever is traced in the block, unless the program has put one of its own on top."""
    with ExitStack() as installed:
        for owner, name in _RECORDERS:
            record = vars(owner)[name]
            setattr(owner, name, _without(mode, record, getattr(owner, name)))
            installed.callback(setattr, owner, name, record)
        yield


def _without(mode: TorchDispatchMode, record: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(record)
    def recorded_without(*args: Any, **kwargs: Any) -> Any:
        if _get_current_dispatch_mode() is not mode:
            return call(*args, **kwargs)
        with _pop_mode_temporarily():
            return call(*args, **kwargs)

    return recorded_without
