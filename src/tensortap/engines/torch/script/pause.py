"""Getting a word in while the program goes on: in its main thread, at a moment when no operation is being executed."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from enum import Enum
from types import FrameType

import torch

import tensortap

__all__ = ["InMainThread", "Where", "where_is"]

_PAUSE_SECS = 0.002
_TORCH, _OWN = os.path.dirname(torch.__file__), os.path.dirname(tensortap.__file__)
_STARTER = os.path.join("debug", "script", "python.py")


class Where(Enum):
    """Whose code is being executed."""

    PROGRAM = "between two operations"
    TORCH = "inside of torch, and maybe for long"
    OURS = "an operation is being seen"


class InMainThread:
    """Has a function called by the main thread between two instructions, as handlers of signals are.

    Args:
        action: called with the frame that is interrupted, until it says that this was in the program.
    """

    def __init__(self, action: Callable[[FrameType | None], Where]) -> None:
        self._action = action
        self._is_done = True
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)

    def call_soon(self) -> None:
        """Have it called, unless that is going to happen already."""
        if self._is_done:
            self._is_done = False
            threading.Thread(target=self._insist, name="tensortap-pause", daemon=True).start()

    def _insist(self) -> None:
        while not self._is_done:
            ctypes.pythonapi.Py_AddPendingCall(self._callback, None)
            time.sleep(_PAUSE_SECS)

    def _call(self, _: int | None) -> int:
        if not self._is_done:
            where = self._action(sys._getframe(1))
            self._is_done = where is Where.PROGRAM
            if where is Where.OURS:  # which takes a moment: it is the program's turn right after
                ctypes.pythonapi.Py_AddPendingCall(self._callback, None)
        return 0


def where_is(frame: FrameType | None) -> Where:
    """Whose code a frame executes, and those that called it up to the program itself."""
    where = Where.PROGRAM
    while frame is not None and not frame.f_code.co_filename.endswith(_STARTER):
        if frame.f_code.co_filename.startswith(_TORCH):
            return Where.TORCH
        if frame.f_code.co_filename.startswith(_OWN):
            where = Where.OURS
        frame = frame.f_back
    return where
