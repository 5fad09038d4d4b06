"""Telling, the moment records come in, values that have never been bad before.

Many healthy programs make infinities on purpose (a mask of attention), in every run, in the same place. So what
counts is news: a tensor that has a NaN, or an infinity of some sign, for the first time. Whether the news is bad is
for the analysis to say, which looks at the whole run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from tensortap.records import Record, RecordBatch
from tensortap.sink.filters import BAD_SLOTS, has_inf_or_nan
from tensortap.store.batch import pills_of

__all__ = ["Alarm", "Condition"]

_KINDS_KEPT = 100_000  # names of a program that never repeats itself must not fill the memory


Condition = Callable[[Sequence[float]], bool]
"""A user's idea of bad: asked about the numbers of a health pill."""

_NAN, _NEGATIVE, _POSITIVE, _BAD, _CONDITION = 1, 2, 4, 8, 16


class Alarm:
    """Remembers which tensors had which kind of bad value.

    Args:
        condition: what is bad besides NaN and infinities.

    >>> Alarm().is_news([("x", 0, 1)])
    True
    """

    def __init__(self, condition: Condition | None = None) -> None:
        self._condition = condition
        self._known: set[tuple[str, int, int]] = set()
        self._lock = threading.Lock()

    def rings(self, batch: RecordBatch) -> bool:
        """Whether a health pill in the batch tells of a kind of bad value that its tensor has not had before."""
        if batch.has_bad is False and self._condition is None:
            return False
        is_pill, values = pills_of(batch)
        kinds = (values[:, BAD_SLOTS] > 0) @ np.array([_NAN, _NEGATIVE, _POSITIVE])
        if self._condition is not None:
            kinds += _CONDITION * np.array([self._condition(row) for row in values.tolist()], np.int64)
        rows = kinds > 0
        if not rows.any():
            return False
        keys = batch.rows["key"][is_pill][rows].tolist()
        table = batch.table
        return self.is_news(
            [(*table[key][:2], kind) for key, kind in zip(keys, kinds[rows].tolist(), strict=True)]
        )

    def rings_for(self, record: Record) -> bool:
        """The same for a record of its own."""
        if record.debug_op != "DebugNumericSummary" or not has_inf_or_nan(record):
            return False
        return self.is_news([(record.node_name, record.output_slot, _BAD)])

    def is_news(self, seen: list[tuple[str, int, int]]) -> bool:
        """Whether one of these (node, slot, kinds) is new; they are known from then on."""
        with self._lock:
            before = len(self._known)
            if before < _KINDS_KEPT:
                self._known.update(seen)
            return len(self._known) > before
