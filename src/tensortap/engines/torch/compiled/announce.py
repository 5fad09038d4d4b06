"""Modules and optimizers that run eagerly around compiled functions, announced to the run that observes them.

PyTorch compiles hooks along with what they are hooked to. These are always the same functions under the same
keys, and nothing at all while they are being compiled: compiled code is the same in every watched run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers

from tensortap.engines.torch import global_hooks
from tensortap.engines.torch.eager import never_compiled

__all__ = ["Listener", "announced_to"]

_KEY: Any = "tensortap"  # PyTorch's own keys are numbers


class Listener(NamedTuple):
    """What is called, from every thread, with the arguments of PyTorch's own hooks."""

    enter_module: Callable[[nn.Module, Any], None]
    leave_module: Callable[[nn.Module, Any, Any], None]
    enter_optimizer: Callable[[Optimizer, Any, Any], None]
    leave_optimizer: Callable[[Optimizer, Any, Any], None]


_lock = threading.Lock()
_listeners: list[Listener] = []


@contextmanager
def announced_to(listener: Listener) -> Iterator[None]:
    """Let a listener hear of modules and optimizers inside the block."""
    with _lock:
        _listeners.append(listener)
        _install()
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)
            if not _listeners:
                _uninstall()


def _install() -> None:
    modules._global_forward_pre_hooks[_KEY] = _enter_module
    modules._global_forward_hooks[_KEY] = _leave_module
    modules._global_forward_hooks_always_called[_KEY] = True
    optimizers._global_optimizer_pre_hooks[_KEY] = _enter_optimizer
    optimizers._global_optimizer_post_hooks[_KEY] = _leave_optimizer
    global_hooks.hide(_KEY)


def _uninstall() -> None:
    for hooks in (
        modules._global_forward_pre_hooks,
        modules._global_forward_hooks,
        modules._global_forward_hooks_always_called,
        optimizers._global_optimizer_pre_hooks,
        optimizers._global_optimizer_post_hooks,
    ):
        hooks.pop(_KEY, None)
    global_hooks.show(_KEY)


@never_compiled  # type: ignore[type-var]
def _enter_module(module: nn.Module, args: Any) -> None:
    if not torch.compiler.is_compiling():
        for listener in tuple(_listeners):
            listener.enter_module(module, args)


@never_compiled  # type: ignore[type-var]
def _leave_module(module: nn.Module, args: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        for listener in tuple(_listeners):
            listener.leave_module(module, args, output)


@never_compiled  # type: ignore[type-var]
def _enter_optimizer(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        for listener in tuple(_listeners):
            listener.enter_optimizer(optimizer, args, kwargs)


@never_compiled  # type: ignore[type-var]
def _leave_optimizer(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        for listener in tuple(_listeners):
            listener.leave_optimizer(optimizer, args, kwargs)
