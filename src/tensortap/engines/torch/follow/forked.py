"""What forked children of a watched program do: whether they train, or are about to.

A child is a copy of the program with all our hooks in it, which are silent there. Workers of a `DataLoader` are such
children, too, and are left alone. Those that are not forked say what they are when they begin to work.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer
from torch.utils.data import get_worker_info
from torch.utils.data._utils import signal_handling, worker

from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.global_hooks import hide, show

__all__ = [
    "listen_here",
    "listen_in_children",
    "listen_to_loaders",
    "tell_if_loading_data",
]

_autograd: Any = torch.autograd

Note = Callable[[str], None]


def listen_in_children(note: Note) -> None:
    """Have `note` called once in every child that this process forks from now on, when it does something with models.

    It is told what: `made` a module or an optimizer, called a `model`, or `trained`.
    """
    os.register_at_fork(after_in_child=lambda: listen_here(note))


def listen_here(note: Note) -> None:
    """The same for this process, which is a child that has just begun, or has just imported PyTorch."""
    global _listener
    if _listener is not None:  # a child of a child
        _listener.stop()
    _listener = _Listener(note)


_listener: _Listener | None = None


class _Listener:
    """Hears the first sign of training; then it is gone."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._replace(_autograd, "_engine_run_backward", "trained")
        self._replace(Optimizer, "__init__", "made")
        self._replace(nn.Module, "__init__", "made")
        self._module_handle = register_module_forward_pre_hook(self._on_module)
        hide(self._module_handle.id)

    def stop(self) -> None:
        """Hear nothing any more."""
        self._module_handle.remove()
        show(self._module_handle.id)
        for owner, name, ours, theirs in self._replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, theirs)

    def _replace(self, owner: Any, name: str, evidence: str) -> None:
        theirs = getattr(owner, name)

        @functools.wraps(theirs)
        def note_and_call(*args: Any, **kwargs: Any) -> Any:
            self._hear(evidence)
            return theirs(*args, **kwargs)

        ours: Any = never_compiled(note_and_call)  # type: ignore[type-var]
        setattr(owner, name, ours)
        self._replaced.append((owner, name, ours, theirs))

    @never_compiled  # type: ignore[type-var]
    def _on_module(self, module: nn.Module, args: Any) -> None:
        # Without parameters it is a transformation of data, say.
        if next(module.parameters(), None) is None:
            return
        known = set(modules._global_forward_pre_hooks)
        self._hear("model")
        # This call has collected its hooks already; those that have come have to hear of it, too.
        for key, hook in list(modules._global_forward_pre_hooks.items()):
            if key not in known:
                hook(module, args)

    def _hear(self, evidence: str) -> None:
        self.stop()
        if get_worker_info() is None:
            self._note(evidence)


def tell_if_loading_data(tell: Callable[[], None]) -> None:
    """Call `tell` in this process if it turns out to load data for others."""
    work = worker._worker_loop

    @functools.wraps(work)
    def tell_and_work(*args: Any, **kwargs: Any) -> None:
        tell()
        work(*args, **kwargs)

    worker._worker_loop = tell_and_work


def listen_to_loaders(tell: Callable[[Iterable[int]], None]) -> None:
    """Have the numbers of the processes told that a `DataLoader` starts."""
    announced: Any = signal_handling
    announce = announced._set_worker_pids

    @functools.wraps(announce)
    def tell_and_announce(loader: int, workers: tuple[int, ...]) -> None:
        announce(loader, workers)
        tell(workers)

    announced._set_worker_pids = tell_and_announce
