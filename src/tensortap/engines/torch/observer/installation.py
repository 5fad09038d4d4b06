"""What has to be installed in PyTorch for the observer to see a program.

It is there for a run, or, if runs follow each other without a gap, from the first of them until it is removed: putting
hooks on hundreds of parameters and taking them away again would cost more than a small step. Between runs nothing
listens.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import _ops

from tensortap.engines.torch.eager import compilation_suspended
from tensortap.engines.torch.gradients import GradientHooks
from tensortap.engines.torch.observer.library import NativeObserver
from tensortap.engines.torch.observer.module_calls import quick_calls
from tensortap.engines.torch.observer.scopes import NativeScopes
from tensortap.engines.torch.program import Program

if TYPE_CHECKING:
    from tensortap.engines.torch.observer.decoder import Decoder

__all__ = ["Installation"]

_COMPILED = "tensortap.engines.torch.compiled"
"""Imported when a program compiles with our backend; which of its code is executed depends on the dispatch keys."""


class Installation:
    """The callback for operators, and hooks of modules, optimizers and parameters.

    Args:
        program: what is observed.
        decoder: hears of modules and optimizers.
        observer: hears of the rest. All of this happens in the thread that installs it.
        traced: whether PyTorch's profiler records the same operators, and those inside of them are to be counted.
    """

    def __init__(self, program: Program, decoder: Decoder, observer: NativeObserver, traced: bool) -> None:
        self._program = program
        self._traced = traced
        self._thread = threading.get_ident()
        self._gradients = GradientHooks()
        self._version = -1
        self._installed = ExitStack()
        enter_module, leave_module, self._on_gradient = observer.library.tt_hooks(observer.handle)
        self.scopes = NativeScopes(program, decoder, (enter_module, leave_module))
        with ExitStack() as installed:
            installed.enter_context(compilation_suspended())
            installed.enter_context(self.scopes)
            installed.enter_context(quick_calls())
            installed.callback(self._gradients.remove)
            callback = observer.library.tt_install(observer.handle, traced or _COMPILED in sys.modules)
            installed.callback(self._uninstall, observer.library.tt_uninstall, callback)
            if not callback:
                _pass_by_higher_order_ops()
            self._installed = installed.pop_all()

    def fit(self, version: int) -> None:
        """Put hooks on the parameters of the program, unless they have them since it was of this version."""
        if version != self._version:
            self._version = version
            self._gradients.remove()
            self._gradients.add(self._program, lambda path: self._on_gradient)

    def _uninstall(self, uninstall: Callable[[int], None], callback: int) -> None:
        if self.is_here():  # PyTorch keeps it for this thread, and with it
            uninstall(callback)

    def is_for(self, program: Program, traced: bool) -> bool:
        """Whether it is this program that is observed, in this way."""
        return self._program is program and self._traced == traced

    def is_here(self) -> bool:
        """Whether it is this thread that is observed."""
        return threading.get_ident() == self._thread

    def remove(self) -> None:
        """Leave PyTorch as it was; harmless when called again."""
        self._installed.close()


@functools.cache
def _pass_by_higher_order_ops() -> None:
    """Have operators that PyTorch dispatches in Python go past our kernel, which is for those in C++."""
    library: Any = torch._C
    operators: Any = _ops
    key = library._dispatch_tls_local_include_set().highestPriorityTypeId()
    operators._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    for operator in operators._higher_order_ops.values():
        operator.fallthrough(key)
