"""Plain data that Python's garbage collector need not look at.

A program that is learned leaves behind a hundred thousand names and nodes in a second, and the collector goes through
all objects again whenever there is a quarter more of them. Names and nodes refer to plain data only, so they are part
of no cycle: they are freed when the last reference to them goes, whether or not the collector knows them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

__all__ = ["untrack"]

untrack: Callable[[Any], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(
    ("PyObject_GC_UnTrack", ctypes.pythonapi)
)
"""Hide an object from the collector; it must refer to nothing that could ever refer to it."""
