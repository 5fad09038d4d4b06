"""Hooks of ours around every module, which nobody else takes for hooks of the program.

PyTorch warns whoever calls `torch.compile(module)(...)` while there are global hooks, and a program may turn
warnings into errors. So it is only told of hooks that are not ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.modules import module as modules
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["GlobalHooks", "hide", "pairs", "show", "tell_of_pairs"]

_ours: set[Any] = set()
_pairs: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}
_listener: Callable[[], None] | None = None
_has_any_hook: Any = modules._has_any_global_hook


class GlobalHooks:
    """Two hooks around the forward pass of every module, until they are removed.

    Args:
        enter: called as (module, args) before.
        leave: called as (module, args, output) after, also if the module raises.

    >>> import torch
    >>> hooks = GlobalHooks(lambda module, args: print("in"), lambda module, args, output: print("out"))
    >>> _ = torch.nn.Identity()(1)
    in
    out
    >>> hooks.remove()
    """

    def __init__(self, enter: Callable[..., Any], leave: Callable[..., Any]) -> None:
        self._handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        hide(*(handle.id for handle in self._handles))
        _pairs[self.entering] = enter, leave
        _tell()

    @property
    def entering(self) -> int:
        """The key of the first of the two among PyTorch's global hooks."""
        return self._handles[0].id

    def move_behind_others(self) -> None:
        """Be called after the hooks there are now, and stay the same: compiled code knows hooks by their numbers."""
        by_kind: tuple[Any, ...] = (modules._global_forward_pre_hooks, modules._global_forward_hooks)
        for hooks, handle in zip(by_kind, self._handles, strict=True):
            if next(reversed(hooks)) != handle.id:
                hooks.move_to_end(handle.id)
        if next(reversed(_pairs)) != self.entering:
            _pairs[self.entering] = _pairs.pop(self.entering)
            _tell()

    def remove(self) -> None:
        """Take both away; harmless when called again."""
        for handle in self._handles:
            handle.remove()
        show(*(handle.id for handle in self._handles))
        if _pairs.pop(self.entering, None) is not None:
            _tell()


def pairs() -> list[tuple[Callable[..., Any], Callable[..., Any]]]:
    """What is called before and after every module, of ours, in the order in which it is called."""
    return list(_pairs.values())


def tell_of_pairs(listener: Callable[[], None] | None) -> None:
    """Call a function whenever `pairs` change; None for nobody."""
    global _listener
    _listener = listener


def _tell() -> None:
    if _listener is not None:
        _listener()


def hide(*keys: Any) -> None:
    """Have PyTorch say nothing of global hooks with these keys."""
    _ours.update(keys)
    modules._has_any_global_hook = _has_hook_of_the_program


def show(*keys: Any) -> None:
    """The opposite."""
    _ours.difference_update(keys)
    if not _ours:
        modules._has_any_global_hook = _has_any_hook


def _has_hook_of_the_program() -> bool:
    by_kind: tuple[Any, ...] = (
        modules._global_backward_pre_hooks,
        modules._global_backward_hooks,
        modules._global_forward_pre_hooks,
        modules._global_forward_hooks,
    )
    return any(key not in _ours for hooks in by_kind for key in hooks)
