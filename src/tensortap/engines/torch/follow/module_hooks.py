"""Hearing of calls of models from outside all modules, in one thread; calls inside of them are only counted.

In runs that the native interceptor observes the hooks are written in C. Elsewhere they are in Python: a compiler that
meets them can look into them, and makes nothing of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from torch import nn
from torch.compiler import is_dynamo_compiling

from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.follow.present_run import (
    MODULES_A_CALL,
    MOST_CALLS,
    MOST_SHARED_CALLS,
    SHARED_MODULES,
    PresentRun,
)
from tensortap.engines.torch.forks import generation
from tensortap.engines.torch.global_hooks import GlobalHooks

__all__ = ["ModuleHooks"]

Enter = Callable[[nn.Module, Any], None]
Leave = Callable[[nn.Module, Any, Any], None]


class _Calls(Protocol):
    """What is counted; see `OutermostCalls` of the native interceptor."""

    thread: int
    depth: int
    modules: int
    hears_leave: int


class ModuleHooks:
    """Two hooks around every module, while they are wanted.

    Args:
        on_enter: called before a module that is called from outside all modules, or by another thread.
        on_leave: called after such a call, if it is wanted.
        facts: what decides besides whether a call changes nothing about its run, see `observer/root_calls.h`.

    Attributes:
        calls: whose calls are counted (`thread`), how many modules are being called, each by the one before (`depth`),
            how many calls there were (`modules`), and whether `on_leave` is wanted (`hears_leave`). Whoever hears of a
            call sets the depth to 1, for those inside to be counted, and to 0 when he hears of its end.
    """

    def __init__(self, on_enter: Enter, on_leave: Leave, facts: tuple[Any, ...] = ()) -> None:
        self._on_enter, self._on_leave, self._facts = on_enter, on_leave, facts
        self._in_python = _PythonCalls(on_enter, on_leave)
        self._in_c: Any = None
        self.calls: _Calls = self._in_python
        self._hooks: GlobalHooks | None = None
        self._thread = 0

    @property
    def are_there(self) -> bool:
        """Whether calls are heard of."""
        return self._hooks is not None

    def belong_to(self, thread: int) -> None:
        """Count the calls of a thread."""
        self._thread = self.calls.thread = thread

    def add(self, natively: bool) -> None:
        """Hear of calls, behind the hooks that are there: from here a run may be ended, and another begun."""
        calls = self._native() if natively else self._in_python
        if self._hooks is not None and calls is self.calls:
            self._hooks.move_behind_others()
            return
        self.remove()
        calls.thread, calls.depth, calls.modules = self._thread, 0, 0
        calls.hears_leave = self.calls.hears_leave
        self.calls = calls
        self._hooks = GlobalHooks(calls.enter, calls.leave)

    def remove(self) -> None:
        """Hear of nothing; harmless when called again."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    def is_own(self, hook: Any) -> bool:
        """Whether one of PyTorch's global hooks is the first of these two."""
        return bool(hook == self._in_python.enter or (self._in_c is not None and hook is self._in_c.enter))

    def _native(self) -> Any:
        if self._in_c is None:
            # Imported here: the dispatch mode must work where nothing can be compiled.
            from tensortap.engines.torch.observer.module_calls import OutermostCalls

            calls = self._in_c = OutermostCalls.told_to(self._on_enter, self._on_leave, self._facts)
            calls.most_calls = MOST_CALLS
            calls.most_shared_calls = MOST_SHARED_CALLS
            calls.shared_modules, calls.modules_a_call = SHARED_MODULES, MODULES_A_CALL
        return self._in_c

    # --- calls that change nothing about their run -----------------------------------------------------

    @property
    def notes_calls(self) -> bool:
        """Whether such calls can be noted, and are then not heard of."""
        return self._hooks is not None and self.calls is self._in_c

    def begin_run(self, suspected: int) -> None:
        """Note such calls, of a run that begins when so many were suspected."""
        if self.notes_calls:
            self._in_c.begin_run(suspected)

    def hear_next(self) -> None:
        """Have the next call heard of: something has happened that may end the run."""
        if self._in_c is not None:
            self._in_c.goes_on = 0

    def catch_up(self, run: PresentRun) -> None:
        """Tell a run of the calls that were noted, and hear of the next one."""
        if self._in_c is not None:
            self._in_c.goes_on = 0
            noted = self._in_c.take()
            if noted is not None:
                run.note_calls(*noted)

    def go_on(self, run: PresentRun, module: nn.Module, unlooked: int) -> None:
        """A call was heard of, and is part of the run; note those like it, and so many that train nothing."""
        calls = self._in_c
        if self.notes_calls:
            calls.calls, calls.models, calls.trains, calls.shared = run.extent
            calls.expect(module, unlooked)
            calls.goes_on = 1

    def passed(self, module: nn.Module) -> int:
        """How many calls of a model that train nothing were noted since this was asked last."""
        return 0 if self._in_c is None else self._in_c.passed(module)


class _PythonCalls:
    """The hooks in Python. What dynamo asks is a constant to it, and it makes nothing of them then."""

    def __init__(self, on_enter: Enter, on_leave: Leave) -> None:
        self._on_enter, self._on_leave = on_enter, on_leave
        self._generation = generation()
        self.thread = self.depth = self.modules = self.hears_leave = 0

    @never_compiled  # type: ignore[type-var]
    def enter(self, module: nn.Module, args: Any) -> None:
        if is_dynamo_compiling():
            return
        if self._is_inside():
            self.depth += 1
            self.modules += 1
        else:
            self._on_enter(module, args)

    @never_compiled  # type: ignore[type-var]
    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if is_dynamo_compiling():
            return
        if self._is_inside():
            if self.depth > 1 or not self.hears_leave:
                self.depth -= 1
            else:
                self._on_leave(module, args, output)

    def _is_inside(self) -> bool:
        return self.depth > 0 and threading.get_ident() == self.thread and generation() == self._generation
