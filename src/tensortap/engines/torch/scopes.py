"""Where in the program an op runs: in which module, in the backward pass of which node, in which optimizer.

Modules and optimizers announce themselves through PyTorch's global hooks, which are installed for the runs
that need them and removed afterwards. The backward pass is recognised by the running autograd node.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.forks import generation
from tensortap.engines.torch.global_hooks import GlobalHooks
from tensortap.engines.torch.program import Program
from tensortap.engines.torch.tracing import is_being_traced

__all__ = ["Scopes", "announcing"]

_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)

_current_autograd_node: Callable[[], Any] = torch._C._current_autograd_node


_announcing: set[int] = set()


def announcing() -> frozenset[int]:
    """The keys, among PyTorch's global hooks before a module is called, of those that tell a run of it."""
    return frozenset(_announcing)


class Scopes:
    """The module and the optimizer that are executing, in the thread that made this object.

    Args:
        program: gives modules and optimizers their names.
        on_root_module: called as (path, module, args, kwargs) when a module is entered from outside all
            modules, so that its inputs can be named.
        on_optimizer: called as (scope, optimizer) when an optimizer starts to step.
        around_compiled: compiled functions stay compiled in this run.
    """

    def __init__(
        self,
        program: Program,
        on_root_module: Callable[[str, nn.Module, Any], None],
        on_optimizer: Callable[[str, Optimizer], None],
        around_compiled: bool = False,
    ) -> None:
        self._program = program
        self._paths: dict[int, str] = {}
        self._thread = threading.get_ident()
        self._on_root_module = on_root_module
        self._on_optimizer = on_optimizer
        self._hooks = ExitStack()
        self._module_hooks: tuple[Any, Any] = (self._enter_module, self._leave_module)
        self._around_compiled = around_compiled
        self._generation = generation()
        self.modules: list[tuple[str, bool]] = []
        """Scopes of the modules being executed, and whether the backward pass called them (recomputation)."""
        self.has_called_modules = False
        self.optimizers: list[tuple[str, FrameType]] = []
        """Scopes of the optimizers that are stepping, and the frames they step in."""

    def __enter__(self) -> Scopes:
        self._paths = self._known_paths()
        if self._around_compiled:
            from tensortap.engines.torch.compiled.announce import Listener, announced_to

            listener = Listener(
                self._enter_module, self._leave_module, self._enter_optimizer, self._leave_optimizer
            )
            self._hooks.enter_context(announced_to(listener))
            return self
        enter_module, leave_module = self._module_hooks
        hooks = GlobalHooks(enter_module, leave_module)
        _announcing.add(hooks.entering)
        self._hooks.callback(_announcing.discard, hooks.entering)
        for handle in (
            hooks,
            register_optimizer_step_pre_hook(self._enter_optimizer),
            register_optimizer_step_post_hook(self._leave_optimizer),
        ):
            self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()
        self.forget()

    def forget(self) -> None:
        """Nothing is being executed any more, for a run is over."""
        self.modules.clear()
        self.optimizers.clear()

    def publish(self) -> None:
        """Called when an optimizer begins or ends to step, for interceptors that cannot ask."""

    def in_recomputation(self) -> bool:
        """Whether the innermost module was called by the backward pass."""
        return bool(self.modules) and self.modules[-1][1]

    def forward_scope(self) -> str:
        """Scope of an op that the program itself executes now: empty, or ending in a slash."""
        if self.modules:
            return self.modules[-1][0]
        while self.optimizers:
            scope, frame = self.optimizers[-1]
            if _is_on_stack(frame):
                return scope
            self.optimizers.pop()  # its step raised, and the program went on
        return ""

    # Global hooks are called from every thread of the process; a run belongs to one.

    @never_compiled  # type: ignore[type-var]
    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if not self._is_ours():
            return
        path = self._paths.get(id(module))
        if path is None:
            parent = self.modules[-1][0] if self.modules else ""
            path = self._program.path_of_unknown(module, parent.removeprefix("recompute/"))
        recomputed = self.in_recomputation() or _current_autograd_node() is not None
        if not self.modules and not recomputed:
            self._on_root_module(path, module, args)
        self.has_called_modules = True
        self.modules.append((f"recompute/{path}/" if recomputed else f"{path}/", recomputed))

    @never_compiled  # type: ignore[type-var]
    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.modules and self._is_ours():
            self.modules.pop()

    def _enter_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if not self._is_ours():
            return None
        scope = self._program.optimizer_scope(optimizer)
        self.optimizers.append((scope + "/", sys._getframe(2 if self._around_compiled else 1)))
        self._on_optimizer(scope, optimizer)
        self.publish()
        if self._around_compiled:
            return None
        # What a closure does is the program's own: the optimizer only says when.
        return tuple(map(self._outside, args)), {name: self._outside(each) for name, each in kwargs.items()}

    def _outside(self, argument: Any) -> Any:
        """A closure given to an optimizer, as code outside of it; anything else as it is.

        Only what is nothing but a function: optimizers are given models and other objects too, which can be called.
        """
        if not isinstance(argument, _FUNCTIONS):
            return argument

        @functools.wraps(argument)
        def closure(*args: Any, **kwargs: Any) -> Any:
            stepping, self.optimizers = self.optimizers, []
            self.publish()
            try:
                return argument(*args, **kwargs)
            finally:
                self.optimizers = stepping
                self.publish()

        return closure

    def _leave_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.optimizers and self._is_ours():
            self.optimizers.pop()
            self.publish()

    def _known_paths(self) -> dict[int, str]:
        return self._program.module_paths()

    def _is_ours(self) -> bool:
        is_here = threading.get_ident() == self._thread and generation() == self._generation
        return is_here and not is_being_traced()


def _is_on_stack(wanted: FrameType) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame is wanted:
            return True
        frame = frame.f_back
    return False
