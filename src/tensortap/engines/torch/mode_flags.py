"""Flags of the process that PyTorch keeps about dispatch modes, kept right for modes of several threads.

PyTorch notes in variables of the process that a mode is active, and each mode puts back what it found when it came.
If two threads come and leave in turn, the last to leave puts back what the other one had set, for good: functions
are then compiled again and again, or not at all, long after everybody has left.
"""

from __future__ import annotations

import threading
from typing import Any

from torch.utils import _python_dispatch

__all__ = ["mode_entered", "mode_left"]

_NAMES = [
    name
    for name in (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    )
    if hasattr(_python_dispatch, name)
]
_tell_compiler: Any = getattr(
    _python_dispatch, "set_is_in_mode_without_ignore_compile_internals", lambda flag: None
)

_lock = threading.Lock()
_active = 0
_before: list[bool] = []


def mode_entered() -> None:
    """A mode of ours is about to be entered."""
    global _active, _before
    with _lock:
        if not _active:
            _before = [getattr(_python_dispatch, name) for name in _NAMES]
        _active += 1


def mode_left() -> None:
    """A mode of ours was left: as long as there is another, all is as with one; then, as before the first."""
    global _active
    with _lock:
        _active -= 1
        for name, before in zip(_NAMES, _before, strict=True):
            setattr(_python_dispatch, name, before or _active > 0)
        if _before:
            _tell_compiler(_before[-1] or _active > 0)
