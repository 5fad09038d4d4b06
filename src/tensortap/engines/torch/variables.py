"""The variables of functions that are being executed."""

from __future__ import annotations

import sys
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

__all__ = ["variables_of"]


def variables_of(frame: FrameType) -> dict[str, Any]:
    """A copy of the variables of a function that is being executed.

    Before Python 3.13 reading them leaves a dict in the frame, which keeps their values alive and decides in which
    order the program's own `locals()` lists them. If nobody else has it, it is emptied again. A debugger at work
    would take that for a command to delete the variables themselves.
    """
    found = frame.f_locals
    names = dict(found)
    is_left_behind = frame.f_code.co_flags & CO_OPTIMIZED and sys.version_info < (3, 13)
    if is_left_behind and sys.getrefcount(found) <= 3 and sys.gettrace() is None and frame.f_trace is None:
        found.clear()
    return names
