"""Telling, the moment records come in, values that have never been bad before.

Many healthy programs make infinities on purpose (a mask of attention), in every run, in the same place. So what
counts is news: a tensor that has a NaN, or an infinity of some sign, for the first time. Whether the news is bad is
for the analysis to say, which looks at the whole run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.pill import KIND_POS_INF, kinds_of_all, pill_of
from tensortap.records import Record, RecordBatch
from tensortap.store.batch import pills_of

__all__ = ["Alarm", "Condition"]

_TENSORS_KEPT = 100_000  # names of a program that never repeats itself must not fill the memory


Condition = Callable[[Sequence[float]], bool]
"""A user's idea of bad: asked about the numbers of a health pill."""

_CONDITION = 2 * KIND_POS_INF  # one more kind, beside those of a pill


class Alarm:
    """Remembers which tensors had which kinds of bad values.

    Args:
        condition: what is bad besides NaN and infinities.

    >>> Alarm().is_news([("x", 0, 1)])
    True
    """

    def __init__(self, condition: Condition | None = None) -> None:
        self._condition = condition
        self._known: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def rings(self, batch: RecordBatch) -> bool:
        """Whether a health pill in the batch tells of a kind of bad value that its tensor has not had before."""
        if batch.has_bad is False and self._condition is None:
            return False
        is_pill, pills = pills_of(batch)
        kinds = self._kinds(pills)
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
        pill = pill_of(record)
        if pill is None:
            return False
        kinds = int(self._kinds(pill.reshape(1, -1))[0])
        return kinds > 0 and self.is_news([(record.node_name, record.output_slot, kinds)])

    def is_news(self, seen: list[tuple[str, int, int]]) -> bool:
        """Whether one of these (node, slot, kinds) tells of a kind that is new; it is known from then on."""
        news = False
        with self._lock:
            for node, slot, kinds in seen:
                before = self._known.get((node, slot), 0)
                if kinds & ~before and (before or len(self._known) < _TENSORS_KEPT):
                    self._known[node, slot] = before | kinds
                    news = True
        return news

    def _kinds(self, pills: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """What is bad in each of these health pills, as a sum of kinds."""
        kinds = kinds_of_all(pills)
        if self._condition is not None:
            kinds += _CONDITION * np.array([self._condition(row) for row in pills.tolist()], np.int64)
        return kinds
