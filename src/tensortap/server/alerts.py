"""Which tensors had NaN or infinite elements, how often, and since when (F25)."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tensortap.pill import KIND_NAN, KIND_NEG_INF, KIND_POS_INF, kinds_of_all, kinds_of_record
from tensortap.records import Record, RecordBatch, tensor_name
from tensortap.store.batch import pills_of

__all__ = ["CAPACITY", "Alert", "AlertRegistry"]

CAPACITY = 100
"""Tensors that are kept: the first ones to go bad are the ones to look at."""


@dataclass(slots=True)
class Alert:
    """One tensor that has been bad.

    Attributes:
        nan, neg_inf, pos_inf: in how many records it had such elements.
        first, last: microseconds since the epoch of the first and the last of them.
    """

    device: str
    tensor: str
    first: int
    last: int
    nan: int = 0
    neg_inf: int = 0
    pos_inf: int = 0


class AlertRegistry:
    """Alerts of one job; safe to use from several threads.

    Attributes:
        left_out: records of tensors for which there was no more room.
        version: grows with every change.

    >>> registry = AlertRegistry()
    >>> from tensortap.pill import NAN, PILL_SIZE
    >>> pill = np.zeros(PILL_SIZE)
    >>> pill[NAN] = 3
    >>> registry.see(Record("fc", 0, "DebugNumericSummary", "/device:CPU:0", 17, "float64", (14,), pill))
    1
    >>> [(alert.tensor, alert.nan) for alert in registry.report()]
    [('fc:0', 1)]
    """

    def __init__(self, saved: Sequence[Mapping[str, Any]] = ()) -> None:
        self._lock = threading.Lock()
        self._alerts: dict[tuple[str, str], Alert] = {}
        self.left_out = 0
        self.version = 0
        for facts in saved[:CAPACITY]:
            alert = Alert(**facts)
            self._alerts[alert.device, alert.tensor] = alert

    def see(self, record: Record) -> int:
        """Take note of one record; how many of NaN, -inf and +inf it has."""
        kinds = kinds_of_record(record)
        if kinds:
            self._note(record.device, record.tensor_name, record.timestamp, kinds)
        return kinds.bit_count()

    def see_batch(self, batch: RecordBatch) -> int:
        """Take note of the health pills of a batch; how many were bad."""
        is_pill, values = pills_of(batch)
        bad = kinds_of_all(values)
        places = np.flatnonzero(bad)
        if len(places):
            rows = batch.rows[np.flatnonzero(is_pill)[places]]
            for row, kinds in zip(rows, bad[places].tolist(), strict=True):
                key = batch.table[int(row["key"])]
                self._note(
                    key.device, tensor_name(key.node_name, key.output_slot), int(row["timestamp"]), kinds
                )
        return len(places)

    def report(self, device: str = "", tensor: str = "") -> list[Alert]:
        """The alerts, first to go bad first, whose names contain these regular expressions."""
        with self._lock:
            found = [Alert(**asdict(alert)) for alert in self._alerts.values()]
        found = [each for each in found if re.search(device, each.device) and re.search(tensor, each.tensor)]
        return sorted(found, key=lambda alert: (alert.first, alert.tensor))

    def saved(self) -> list[dict[str, Any]]:
        """What a new registry needs to go on."""
        return [asdict(alert) for alert in self.report()]

    def clear(self) -> None:
        """Forget all alerts."""
        with self._lock:
            self._alerts.clear()
            self.left_out = 0
            self.version += 1

    def _note(self, device: str, tensor: str, timestamp: int, kinds: int) -> None:
        with self._lock:
            alert = self._alerts.get((device, tensor))
            if alert is None:
                if len(self._alerts) >= CAPACITY:
                    self.left_out += 1
                    return
                alert = self._alerts[device, tensor] = Alert(device, tensor, timestamp, timestamp)
            self.version += 1
            alert.first = min(alert.first, timestamp)
            alert.last = max(alert.last, timestamp)
            alert.nan += bool(kinds & KIND_NAN)
            alert.neg_inf += bool(kinds & KIND_NEG_INF)
            alert.pos_inf += bool(kinds & KIND_POS_INF)
