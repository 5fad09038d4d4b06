"""Compiled functions while somebody observes: run eagerly, or compiled with taps.

Only what runs eagerly can be seen op by op. A program that asked for it (`backend="tensortap"`) stays compiled in
runs that want numeric summaries only.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any, TypeVar

import torch

__all__ = ["compilation_suspended", "compiled_with", "never_compiled"]

_Function = TypeVar("_Function", bound=FunctionType)

_COMPILER = "torch._dynamo"

_lock = threading.Lock()
_eager_observers = 0
_backends: list[Callable[..., Any]] = []
_stance = ExitStack()


@contextmanager
def compilation_suspended() -> Iterator[None]:
    """Run everything eagerly inside the block, and compiled as before after it.

    PyTorch's own switch belongs to the process; several threads may observe at once, and as long as one of
    them needs it everything is eager.
    """
    global _eager_observers
    _watch_for_the_compiler()
    with _lock:
        _eager_observers += 1
        _set_stance()
    try:
        yield
    finally:
        with _lock:
            _eager_observers -= 1
            _set_stance()
            _excuse_a_call_in_progress()


@contextmanager
def compiled_with(backend: Callable[..., Any]) -> Iterator[None]:
    """Run compiled functions as this backend compiles them inside the block, and as before after it.

    PyTorch keeps what different backends made of a function side by side, so nothing is compiled twice.
    """
    with _lock:
        _backends.append(backend)
        _set_stance()
    try:
        yield
    finally:
        with _lock:
            _backends.remove(backend)
            _set_stance()


def never_compiled(function: _Function) -> _Function:
    """Keep torch.compile from tracing a function of ours and everything it calls.

    A program may compile something for the first time in the middle of an observed run, when it is too late to
    suspend compilation. PyTorch's own decorator for this costs several microseconds a call.
    """
    dynamo = torch._C._dynamo.eval_frame
    skip = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.SKIP)
    dynamo.set_code_exec_strategy(function.__code__, skip)
    return function


def _set_stance() -> None:
    if _COMPILER not in sys.modules:
        return  # importing it takes seconds, and nothing is compiled without it
    _stance.close()
    if _eager_observers:
        _stance.enter_context(torch.compiler.set_stance("force_eager"))
    elif _backends:
        _stance.enter_context(torch.compiler.set_stance("default", force_backend=_backends[-1]))


def _excuse_a_call_in_progress() -> None:
    """Let a function end in which a run ends, and which runs eagerly although it asked for one graph.

    With `fullgraph=True` PyTorch counts what of a call was compiled, and does not accept nothing at all.
    """
    set_count = getattr(torch._C._dynamo.eval_frame, "set_fullgraph_compiled_frame_count", None)
    if set_count is not None:
        set_count(-1)  # no longer counted


class _CompilerFinder(importlib.abc.MetaPathFinder):
    """Notices that the program imports the compiler in the middle of an observed run, and sets the stance then."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != _COMPILER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute: Any = spec.loader.exec_module

            def execute_and_set_stance(module: Any) -> None:
                execute(module)
                with _lock:
                    _set_stance()

            spec.loader.exec_module = execute_and_set_stance  # type: ignore[method-assign]
        return spec


_compiler_finder = _CompilerFinder()


def _watch_for_the_compiler() -> None:
    if _COMPILER not in sys.modules and _compiler_finder not in sys.meta_path:
        sys.meta_path.insert(0, _compiler_finder)
