"""Telling calls of models that only rehearse, to learn shapes, from those that are meant."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from tensortap.engines.torch.glance import tensors_in

__all__ = ["PIPELINES", "Rehearsals"]

PIPELINES = "torch.distributed.pipelining.stage"
_LEARN_SHAPES = ("_forward_metadata_inference", "_shape_inference")
_FRAMES_LOOKED_AT = 12

_MOST = 2
"""Calls of one model that are taken for rehearsals: a program with more of them fills memory unseen, by NumPy say."""


class Rehearsals:
    """Knows calls whose results mean nothing: a model is given memory as it was found, or a pipeline wants shapes.

    They are part of whatever comes next; a run of its own would tell of nothing but chance.

    Args:
        is_unwritten: whether nobody has written yet to a tensor.
    """

    def __init__(self, is_unwritten: Callable[[torch.Tensor], bool]) -> None:
        self._is_unwritten = is_unwritten
        self._counts: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def has(self, module: nn.Module, args: Any, frame: FrameType | None) -> bool:
        """Whether a call of a model is one."""
        if _asks_for_shapes(frame):
            return True
        if not any(map(self._is_unwritten, tensors_in(args))):
            return False
        count = self._counts[module] = self._counts.get(module, 0) + 1
        return count <= _MOST


def _asks_for_shapes(frame: FrameType | None) -> bool:
    """Whether a stage of a pipeline calls its part of the model before the first step."""
    if PIPELINES not in sys.modules:
        return False
    file = sys.modules[PIPELINES].__file__
    for _ in range(_FRAMES_LOOKED_AT):
        if frame is None:
            return False
        if frame.f_code.co_name in _LEARN_SHAPES and frame.f_code.co_filename == file:
            return True
        frame = frame.f_back
    return False
