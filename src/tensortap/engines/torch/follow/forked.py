"""What forked children of a watched program do: whether they train, or call a model.

A child is a copy of the program with all our hooks in it, which are silent there. Workers of a `DataLoader` are such
children, too: what is listened for is what only a process does that has a model. Those that are not forked cannot be
told apart that way, so the loader says which they are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data._utils import signal_handling

from tensortap.engines.torch.eager import never_compiled

__all__ = ["listen_here", "listen_in_children", "listen_to_loaders", "world_size"]

_autograd: Any = torch.autograd

Note = Callable[[str], None]


def listen_in_children(note: Note) -> None:
    """Have `note("trained")` or `note("model")` called once in every child that this process forks from now on."""
    os.register_at_fork(after_in_child=lambda: listen_here(note))


def listen_here(note: Note) -> None:
    """The same for this process, which is a child that has just begun, or has just imported PyTorch."""
    global _listener
    if _listener is not None:  # a child of a child
        _listener.stop()
    _listener = _Listener(note)


_listener: _Listener | None = None


class _Listener:
    """Hears the first model that is called and the first backward pass; then it is gone."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._backward: Any = _autograd._engine_run_backward
        self._in_place: Any = self._on_backward
        _autograd._engine_run_backward = self._in_place
        self._module_handle = register_module_forward_pre_hook(self._on_module)

    def stop(self) -> None:
        """Hear nothing any more."""
        self._module_handle.remove()
        if _autograd._engine_run_backward is self._in_place:
            _autograd._engine_run_backward = self._backward

    @never_compiled  # type: ignore[type-var]
    def _on_module(self, module: nn.Module, args: Any) -> None:
        # Without parameters it is a transformation of data, say.
        if next(module.parameters(), None) is not None:
            self._module_handle.remove()
            self._note("model")

    @never_compiled  # type: ignore[type-var]
    def _on_backward(self, *args: Any, **kwargs: Any) -> Any:
        self.stop()
        self._note("trained")
        return self._backward(*args, **kwargs)


def listen_to_loaders(tell: Callable[[Iterable[int]], None]) -> None:
    """Have the numbers of the processes told that a `DataLoader` starts."""
    announced: Any = signal_handling
    announce = announced._set_worker_pids

    @functools.wraps(announce)
    def tell_and_announce(loader: int, workers: tuple[int, ...]) -> None:
        announce(loader, workers)
        tell(workers)

    announced._set_worker_pids = tell_and_announce


def world_size() -> int:
    """How many ranks the job of this process has, as far as PyTorch knows."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1
