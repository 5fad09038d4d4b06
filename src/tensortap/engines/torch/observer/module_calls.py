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
        goes_on: whether calls that are like those before in the present run are noted, and not told. What they are
            like is said by `calls`, `models`, `trains` and `shared`, which are those of `PresentRun`.
        most_calls: how many there may be in a run; `most_shared_calls`, `shared_modules` and `modules_a_call` say it of
            those without gradients that share one. To be set to what `present_run.py` says.
    """

    _fields_ = (
        ("thread", ctypes.c_uint64),
        ("depth", ctypes.c_int64),
        ("modules", ctypes.c_int64),
        ("hears_leave", ctypes.c_int64),
        ("goes_on", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("models", ctypes.c_int64),
        ("trains", ctypes.c_int64),
        ("shared", ctypes.c_int64),
        ("suspected", ctypes.c_int64),
        ("most_calls", ctypes.c_int64),
        ("most_shared_calls", ctypes.c_int64),
        ("shared_modules", ctypes.c_int64),
        ("modules_a_call", ctypes.c_int64),
    )

    enter: Callable[..., None]
    leave: Callable[..., None]
    _itself: tuple[Any, ...]
    _library: Any

    @classmethod
    def told_to(
        cls, on_enter: Callable[..., None], on_leave: Callable[..., None], facts: tuple[Any, ...] = ()
    ) -> OutermostCalls:
        """Hooks that call these two.

        Args:
            on_enter: before a call.
            on_leave: after it.
            facts: what decides whether a call is noted, see root_calls.h.
        """
        memory = bytearray(ctypes.sizeof(cls))
        calls = cls.from_buffer(memory)
        calls._library = library()
        calls._itself = (memory, on_enter, on_leave, library().tt_root_calls(facts))
        calls.enter, calls.leave = library().tt_outermost_calls(calls._itself)
        _all.append(weakref.ref(calls, _all.remove))
        return calls

    def begin_run(self, suspected: int) -> None:
        """A run begins, whose calls may be noted until one is to be told."""
        self._library.tt_begin_root_calls(self._itself, suspected)

    def take(self) -> tuple[tuple[int, ...], int, bool, tuple[int, ...]] | None:
        """What was noted since this was asked last, for `PresentRun.note_calls`; None if nothing was."""
        noted: tuple[tuple[int, ...], int, bool, tuple[int, ...]] | None
        noted = self._library.tt_take_root_calls(self._itself)
        return noted

    def passed(self, module: nn.Module) -> int:
        """How many calls of a model that train nothing were noted since this was asked last."""
        return int(self._library.tt_passed_root_calls(self._itself, module))

    def expect(self, module: nn.Module, unlooked: int) -> None:
        """Note calls of a model that was called in this run; so many of those that train nothing, until one is told."""
        self._library.tt_expect_root_call(self._itself, module, weakref.ref(module), unlooked)


_all: list[weakref.ref[OutermostCalls]] = []


def _in_child() -> None:
    for reference in _all:
        calls = reference()
        if calls is not None:
            calls.thread = 0


os.register_at_fork(after_in_child=_in_child)
