"""Filters over records: what makes a run worth keeping."""

from __future__ import annotations

from collections.abc import Callable

from tensortap.pill import are_bad, kinds_of_record
from tensortap.records import Record, RecordBatch
from tensortap.store.batch import pills_of

__all__ = ["RecordFilter", "has_inf_or_nan", "look_at_pills"]

RecordFilter = Callable[[Record], bool]


def has_inf_or_nan(record: Record) -> bool:
    """Whether a record tells of an infinite or NaN element.

    Read from a numeric summary where the record is one (bounds given to the op count as infinities), from a
    NaN count, or else from the value itself.

    >>> has_inf_or_nan(Record("x", 0, "DebugNanCount", "", 1, "int64", (1,), bytes([2, *bytes(7)])))
    True
    >>> has_inf_or_nan(Record("x", 0, "DebugNanCount", "", 1, "int64", (1,), bytes(8)))
    False
    """
    return kinds_of_record(record) != 0


def look_at_pills(batch: RecordBatch) -> tuple[bool, RecordBatch]:
    """Whether `has_inf_or_nan` of a health pill in the batch, and the records that are no health pills."""
    is_pill, values = pills_of(batch)
    return bool(are_bad(values).any()), batch.select(~is_pill)
