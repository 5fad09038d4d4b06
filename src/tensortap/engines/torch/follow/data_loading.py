"""Telling calls of models that prepare data from those that use it."""

from __future__ import annotations

from types import FrameType

from torch.utils.data import Dataset
from torch.utils.data._utils import fetch

from tensortap.engines.torch.variables import variables_of

__all__ = ["FETCHES_DATA", "is_loading_data"]

FETCHES_DATA = fetch.__file__
_FRAMES_LOOKED_AT = 40


def is_loading_data(frame: FrameType | None) -> bool:
    """Whether a data set or a loader is at work: what it calls belongs to the step that will use its data."""
    for _ in range(_FRAMES_LOOKED_AT):
        if frame is None:
            return False
        code = frame.f_code
        if code.co_filename == FETCHES_DATA:
            return True
        if code.co_name == "__getitem__" and isinstance(variables_of(frame).get("self"), Dataset):
            return True
        frame = frame.f_back
    return False
