"""The least that any observer of operators costs: one that PyTorch tells of every operator, and that does nothing.

`recording` is PyTorch's RecordFunction with inputs and outputs, as profilers use it; `kernel` a kernel that is called
in place of all others, as the native interceptor does. What a watched program costs above that is ours.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from tensortap.engines.torch.observer.build import ensure_built

__all__ = ["WAYS", "observe_for_nothing"]

WAYS = ("recording", "kernel")


def observe_for_nothing(way: str) -> None:
    """Have this thread observed, one of `WAYS`, until the process ends."""
    library = ctypes.PyDLL(str(ensure_built(Path(__file__).with_suffix(".cpp"))))
    getattr(library, f"floor_by_{way}")()
