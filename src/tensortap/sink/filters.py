"""Filters over records: what makes a run worth keeping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.ops.debug_ops import make_debug_op
from tensortap.ops.view import TensorView
from tensortap.records import Record, RecordBatch
from tensortap.store.batch import pills_of
from tensortap.store.values import numpy_dtype

__all__ = ["RecordFilter", "array_of", "has_inf_or_nan", "look_at_pills"]

RecordFilter = Callable[[Record], bool]

# Slots of a numeric summary: NaN, negative infinity, positive infinity.
BAD_SLOTS = (2, 3, 7)


def has_inf_or_nan(record: Record) -> bool:
    """Whether a record tells of an infinite or NaN element.

    Read from a numeric summary where the record is one (bounds given to the op count as infinities), from a
    NaN count, or else from the value itself.

    >>> has_inf_or_nan(Record("x", 0, "DebugNanCount", "", 1, "int64", (1,), np.array([2])))
    True
    >>> has_inf_or_nan(Record("x", 0, "DebugNanCount", "", 1, "int64", (1,), np.array([0])))
    False
    """
    if record.data is None or record.dtype == "string":
        return False
    value = array_of(record)
    if value is None or value.size == 0:
        return False
    if record.debug_op == "DebugNanCount":
        return bool(value[0] > 0)
    if record.debug_op == "DebugNumericSummary":
        return any(value[slot] > 0 for slot in BAD_SLOTS)
    if record.debug_op != "DebugIdentity" or value.dtype.kind in "biu":
        return False
    summary = make_debug_op("DebugNumericSummary", {}).apply(TensorView.of_numpy(value))
    return summary is not None and any(summary[slot] > 0 for slot in BAD_SLOTS)


def look_at_pills(batch: RecordBatch) -> tuple[bool, RecordBatch]:
    """Whether `has_inf_or_nan` of a health pill in the batch, and the records that are no health pills."""
    is_pill, values = pills_of(batch)
    return bool((values[:, BAD_SLOTS] > 0).any()), batch.select(~is_pill)


def array_of(record: Record) -> npt.NDArray[Any] | None:
    """The value of a record as an array that shares its memory; None if NumPy has no such type."""
    dtype = numpy_dtype(record.dtype)
    if dtype is None or record.data is None:
        return None
    return np.frombuffer(record.data, np.uint8).view(dtype).reshape(record.shape)
