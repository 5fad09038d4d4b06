"""The user's lines that created an op, from the traceback that TensorFlow keeps of every op."""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType
from typing import Any

import tensorflow as tf

from tensortap.engines.lines import Whose, folder_of, resolved, whose
from tensortap.records import Frame

__all__ = ["caller", "framework_folders", "stack_of"]

_STACK_LIMIT = 32  # innermost user frames kept of an op, as for PyTorch
_stacks: dict[tuple[tuple[str, int], ...], tuple[Frame, ...]] = {}
_STACKS_KEPT = 20_000


@functools.cache
def framework_folders() -> tuple[str, ...]:
    """Where TensorFlow lies, and Keras, through which TensorFlow is used."""
    folders = [folder_of(os.path.dirname(tf.__file__))]
    try:
        import keras
    except ImportError:
        return tuple(folders)
    return (*folders, folder_of(next(iter(keras.__path__))))


@functools.cache
def _is_users(file: str) -> bool:
    return (
        "__autograph_generated_file" not in file and whose(resolved(file), framework_folders()) is Whose.USER
    )


def stack_of(op: Any) -> tuple[Frame, ...]:
    """The user's lines that led to the creation of an op, outermost first; the same object for the same lines."""
    try:
        frames = list(op.traceback)
    except (AttributeError, TypeError, ValueError):  # an op that was imported, or made by the runtime
        return ()
    mine = [each for each in frames if _is_users(each.filename)][-_STACK_LIMIT:]
    key = tuple((each.filename, each.lineno) for each in mine)
    known = _stacks.get(key)
    if known is None:
        if len(_stacks) >= _STACKS_KEPT:
            _stacks.clear()
        known = _stacks[key] = tuple(Frame(resolved(each.filename), each.lineno, each.name) for each in mine)
    return known


def caller() -> Frame | None:
    """The user's line that is being executed by this thread; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return Frame(resolved(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None
