"""Compiled functions run eagerly while somebody observes, so that the ops inside them can be seen."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import TypeVar

import torch

__all__ = ["compilation_suspended", "never_compiled"]

_Function = TypeVar("_Function", bound=FunctionType)

_HOOKS_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks"

_lock = threading.Lock()
_observers = 0
_stance = ExitStack()


@contextmanager
def compilation_suspended() -> Iterator[None]:
    """Run everything eagerly inside the block, and compiled as before after it.

    PyTorch's own switch belongs to the process; several threads may observe at once, so the first one in turns
    it and the last one out turns it back.
    """
    _ignore_warning_about_our_hooks()
    if "torch._dynamo" not in sys.modules:  # nothing is compiled unless it has been imported
        try:
            yield
        finally:
            _forget_compilations()
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def never_compiled(function: _Function) -> _Function:
    """Keep torch.compile from tracing a function of ours and everything it calls.

    A program may compile something for the first time in the middle of an observed run, when it is too late to
    suspend compilation. PyTorch's own decorator for this costs several microseconds a call.
    """
    dynamo = torch._C._dynamo.eval_frame
    skip = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.SKIP)
    dynamo.set_code_exec_strategy(function.__code__, skip)
    return function


def _enter() -> None:
    global _observers
    with _lock:
        _observers += 1
        if _observers == 1:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))


def _leave() -> None:
    global _observers
    with _lock:
        _observers -= 1
        if _observers == 0:
            _stance.close()


def _forget_compilations() -> None:
    """Let what was compiled for the first time under our eyes be compiled again.

    PyTorch does not compile under a dispatch mode, and remembers that for good.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def _ignore_warning_about_our_hooks() -> None:
    """Keep compiled modules from warning the user about global hooks that are ours.

    Installed once and left there: changing the filters in every run would make Python show warnings again that
    it has shown already.
    """
    installed = (getattr(message, "pattern", None) for _, message, *_ in warnings.filters)
    if _HOOKS_WARNING not in installed:
        warnings.filterwarnings("ignore", message=_HOOKS_WARNING)
