"""Hearing of the calls of models, and of nothing inside of them: a global hook makes PyTorch take a slower way through
every module, which a program that is only guarded must not pay for.

So the global hook is there only while no model is being called. It steps aside for the call, and gives the model a hook
for its end, or waits to be told that the next call is to be heard of. Where modules may be called in C, it is there for
calls that are to be heard of only.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from tensortap.engines.torch.eager import never_compiled
from tensortap.engines.torch.global_hooks import hide, show
from tensortap.errors import NativeBuildError

if TYPE_CHECKING:
    from tensortap.engines.torch.observer.guarded_calls import GuardedCalls

__all__ = ["RootCalls"]


class RootCalls:
    """Two hooks around the calls of models by this thread, until they are removed.

    Args:
        enter: called as (module, args) before a call; whether to hear of its end, and of the next.
        leave: called as (module, output) after such a call, unless it raises.

    Attributes:
        in_c: what looks at calls without Python, and says which are to be heard of here; None if nothing does.

    >>> calls = RootCalls(lambda module, args: not print("in"), lambda module, output: print("out"))
    >>> _ = nn.Sequential(nn.Identity(), nn.Identity())(1)
    in
    out
    >>> calls.remove()
    """

    def __init__(
        self, enter: Callable[[nn.Module, Any], bool], leave: Callable[[nn.Module, Any], None]
    ) -> None:
        self._on_enter, self._on_leave = enter, leave
        self._thread = threading.get_ident()
        self._handle = modules.register_module_forward_pre_hook(self.entered)
        self._key = self._handle.id
        self._end = _End(self)
        self._called: weakref.ref[nn.Module] | None = None
        self._is_removed = False
        hide(self._key)
        self.in_c = _guarded_calls(self._hear, self._look)
        if self.in_c is not None:
            self._step_aside()

    @never_compiled  # type: ignore[type-var]
    def entered(self, module: nn.Module, args: Any) -> None:
        """A model is called."""
        if torch.compiler.is_dynamo_compiling() or threading.get_ident() != self._thread:
            return
        self._step_aside()
        if self._on_enter(module, args) and not self._is_removed:
            if isinstance(module, torch.jit.ScriptModule):  # it cannot be given hooks
                self.resume()
            else:
                self._called = weakref.ref(module)
                module._forward_hooks[self._key] = self._end

    def resume(self) -> None:
        """Hear of the next call, or of the next that what looks at them in C tells of."""
        if self.in_c is None or not self.in_c.is_there:
            self._hear()
        else:
            self.in_c.gate.leads = 0

    @never_compiled  # type: ignore[type-var]
    def left(self, module: nn.Module, output: Any) -> None:
        """The call is over."""
        if threading.get_ident() == self._thread and self._forget(module):
            self.resume()
            self._on_leave(module, output)

    def remove(self) -> None:
        """Hear of nothing any more; harmless when called again."""
        self._is_removed = True
        called = None if self._called is None else self._called()
        if called is not None:
            self._forget(called)
        self._handle.remove()
        show(self._key)
        if self.in_c is not None:
            self.in_c.remove()

    def _hear(self) -> None:
        if self._called is None and not self._is_removed:
            modules._global_forward_pre_hooks[self._key] = self.entered

    def _step_aside(self) -> None:
        modules._global_forward_pre_hooks.pop(self._key, None)

    def _look(self, module: nn.Module, output: Any) -> None:
        if not self._is_removed:
            self._on_leave(module, output)

    def _forget(self, module: nn.Module) -> bool:
        self._called = None
        return module._forward_hooks.pop(self._key, None) is not None


def _guarded_calls(tell: Callable[[], None], look: Callable[[nn.Module, Any], None]) -> GuardedCalls | None:
    try:
        # Imported here: the dispatch mode must work where nothing can be compiled.
        from tensortap.engines.torch.observer.guarded_calls import GuardedCalls

        return GuardedCalls(tell, look) if GuardedCalls.may_be() else None
    except NativeBuildError:
        return None


class _End:
    """The hook of one model. If the call raised, it stays until the next, and is then not part of a copy."""

    def __init__(self, calls: RootCalls) -> None:
        self._calls = calls

    @never_compiled  # type: ignore[type-var]
    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self._calls.left(module, output)

    def __deepcopy__(self, memo: Any) -> Any:
        return _nothing

    def __reduce__(self) -> Any:
        return _no_hook, ()


def _nothing(module: nn.Module, args: Any, output: Any) -> None:
    """What is left of a hook in a copy of its model."""


def _no_hook() -> Any:
    return _nothing
