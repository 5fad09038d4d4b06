"""Calls of modules without PyTorch's slow way around hooks, while the only hooks are ours; see module_calls.h."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules import module as modules

from tensortap.engines.torch.global_hooks import pairs, tell_of_pairs
from tensortap.engines.torch.observer.library import library

__all__ = ["OutermostCalls", "called_in_c", "is_usual", "quick_calls"]

_CALL = "_call_impl"
_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_pre_hooks", "_forward_hooks")

_theirs: Any = vars(nn.Module)[_CALL]
_users = 0
_ours: Any = None


@contextmanager
def quick_calls() -> Iterator[None]:
    """Have modules called in C, in the block, if nobody else has put something in the place of PyTorch's own way.

    Nothing may be compiled meanwhile: the compiler knows PyTorch's way, and not this one.
    """
    global _users
    _users += 1
    if _users == 1:
        _install()
    try:
        yield
    finally:
        _users -= 1
        if not _users:
            _remove()


def _install() -> None:
    global _ours
    if not is_usual():
        return
    _ours = called_in_c()
    tell_of_pairs(_pairs_changed)
    _pairs_changed()
    setattr(nn.Module, _CALL, _ours)


def is_usual() -> bool:
    """Whether modules are called as PyTorch does it."""
    return vars(nn.Module)[_CALL] is _theirs


def called_in_c() -> Any:
    """What may take the place of PyTorch's way to call a module, and goes it for modules with hooks of the program."""
    dicts = (
        modules._global_forward_pre_hooks,
        modules._global_forward_hooks,
        modules._global_backward_pre_hooks,
        modules._global_backward_hooks,
    )
    return library().tt_quick_calls(_theirs, dicts, _HOOKS)


def _remove() -> None:
    if vars(nn.Module)[_CALL] is _ours:
        setattr(nn.Module, _CALL, _theirs)
    tell_of_pairs(None)
    library().tt_set_quick_hooks([])  # whoever has kept ours goes PyTorch's way


def _pairs_changed() -> None:
    library().tt_set_quick_hooks(pairs())


class OutermostCalls(ctypes.Structure):
    """Hooks that tell Python of calls from outside all modules, and count the others.

    Attributes:
        thread: whose calls are counted.
        depth: how many modules are being called, each by the one before; to be set to 1 by whoever hears of a call
            and wants those inside to be counted.
        modules: calls of modules so far.
        hears_leave: whether the end of an outermost call is told, too.
    """

    _fields_ = (
        ("thread", ctypes.c_uint64),
        ("depth", ctypes.c_int64),
        ("modules", ctypes.c_int64),
        ("hears_leave", ctypes.c_int64),
    )

    enter: Callable[..., None]
    leave: Callable[..., None]

    @classmethod
    def told_to(cls, on_enter: Callable[..., None], on_leave: Callable[..., None]) -> OutermostCalls:
        """Hooks that call these two."""
        memory = bytearray(ctypes.sizeof(cls))
        calls = cls.from_buffer(memory)
        calls.enter, calls.leave = library().tt_outermost_calls((memory, on_enter, on_leave))
        _all.append(weakref.ref(calls, _all.remove))
        return calls


_all: list[weakref.ref[OutermostCalls]] = []


def _in_child() -> None:
    for reference in _all:
        calls = reference()
        if calls is not None:
            calls.thread = 0


os.register_at_fork(after_in_child=_in_child)
