"""Calls of models in runs that are only guarded, looked at without Python; see guarded_calls.h."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from tensortap.engines.torch.observer.library import library
from tensortap.engines.torch.observer.module_calls import called_in_c, is_usual

__all__ = ["GuardedCalls"]

_CALL = "_call_impl"
_COMPILER = "torch._dynamo"


class _Gate(ctypes.Structure):
    _fields_ = (
        ("thread", ctypes.c_uint64),
        ("depth", ctypes.c_int64),
        ("quiet", ctypes.c_int64),
        ("trains", ctypes.c_int64),
        ("stepped", ctypes.c_int64),
        ("leads", ctypes.c_int64),
        ("own_ns", ctypes.c_int64),
    )


class GuardedCalls:
    """Has calls of models looked at in C, until it is removed.

    The compiler knows PyTorch's way to call a module, and not this one: so it goes when something is compiled,
    and does not come back.

    Args:
        tell: called before a call that Python is to hear of by its own hooks.
        look: called as (module, output) if what a model returned is not plainly finite.

    Attributes:
        gate: `quiet` calls without gradients are not told of; with `trains` and without `stepped`, neither are calls
            that lead to a step, nor any after it until `leads` is cleared. `own_ns` is how long looking took.
    """

    def __init__(self, tell: Callable[[], None], look: Callable[[nn.Module, Any], None]) -> None:
        self.gate = _the_gate()
        ctypes.memset(ctypes.addressof(self.gate), 0, ctypes.sizeof(_Gate))
        self.gate.thread = threading.get_ident()
        self._theirs = vars(nn.Module)[_CALL]
        called_in_c()
        self._ours = library().tt_guarded_calls(tell, look)
        setattr(nn.Module, _CALL, self._ours)
        _installed.append(self)

    @staticmethod
    def may_be() -> bool:
        """Whether nothing has been compiled so far, and it will be known when something is."""
        return is_usual() and _hears_of_compiler()

    @property
    def is_there(self) -> bool:
        """Whether it has not been removed."""
        return self in _installed

    def remove(self) -> None:
        """Have modules called as before; harmless when called again."""
        if self.is_there:
            _installed.remove(self)
            self.gate.thread = 0
            if vars(nn.Module)[_CALL] is self._ours:
                setattr(nn.Module, _CALL, self._theirs)


_installed: list[GuardedCalls] = []
_is_compiling = False


def _the_gate() -> _Gate:
    return _Gate.from_address(library().tt_gate())


def _hears_of_compiler() -> bool:
    compiler: Any = sys.modules.get(_COMPILER)
    if _is_compiling or compiler is None:
        return False
    try:
        handler = compiler.callback.callback_handler
        if _before_compiling not in handler.start_callbacks:
            if compiler.utils.counters["frames"]["total"]:
                return False
            handler.start_callbacks = _Callbacks([*handler.start_callbacks, _before_compiling])
    except AttributeError:  # another PyTorch
        return False
    return True


class _Callbacks(list[Any]):
    """Callbacks of the compiler, of which `torch._dynamo.reset()` clears all but ours."""

    def clear(self) -> None:
        """Forget those of others."""
        self[:] = [each for each in self if each is _before_compiling]


def _before_compiling(*_: object) -> None:
    global _is_compiling
    _is_compiling = True
    for each in _installed:
        each.remove()


def _in_child() -> None:
    for each in _installed:
        each.gate.thread = 0


os.register_at_fork(after_in_child=_in_child)
