"""Numeric summaries, made one by one and handed over in batches.

The kernel reads a tensor in host memory the moment it is complete. Everything else about its record can wait a
little, and done for many at once it costs a fraction: between two ops of a model, every line of Python runs with
cold caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensortap.engines.observe.bad_values import BadValues
from tensortap.engines.tensors import Tensors
from tensortap.ops import kernel
from tensortap.ops.debug_ops import DebugNumericSummary, DebugOp
from tensortap.pill import PILL_SIZE, are_healthy, kinds_of
from tensortap.records import MAX_BATCH_RANK, RECORD_ROW, KeyTable, Node, RecordBatch

if TYPE_CHECKING:
    from tensortap.sink.publisher import Publisher

__all__ = ["Pills", "Summary", "hand_over_summaries"]

BATCH = 128
MAX_AGE_MICROSECONDS = 20_000  # a program that hangs in an op has shown all but the last few tensors
_WIDTH = PILL_SIZE + MAX_BATCH_RANK
_ROW_BYTES = _WIDTH * 8


class Summary(NamedTuple):
    """Whose a summary is, when it was made, and of a tensor of which rank."""

    op: DebugNumericSummary
    positions: tuple[int, ...]
    node: Node
    slot: int
    timestamp: int
    rank: int


class Pills:
    """The summaries of one run that have been made and not yet handed over."""

    def __init__(self, tensors: Tensors, publisher: Publisher, bad: BadValues) -> None:
        self._tensors = tensors
        self._publisher = publisher
        self._bad = bad
        self._native = kernel.native()
        self._rows: npt.NDArray[np.float64] | None = None  # not before a summary has to be made here
        self._address = 0
        self._waiting: list[Summary] = []

    def add(self, wanted: tuple[DebugOp, tuple[int, ...]], node: Node, slot: int, tensor: Any) -> bool:
        """Summarise a tensor now; False if this one has to go the ordinary way."""
        op, positions = wanted
        if (
            self._native is None
            or type(op) is not DebugNumericSummary
            or math.isfinite(op.lower_bound)
            or math.isfinite(op.upper_bound)
        ):
            return False
        memory = self._tensors.plain_memory(tensor)
        if memory is None or len(memory[2]) > MAX_BATCH_RANK:
            return False
        address, code, shape, strides = memory
        now = self._publisher.now()
        if self._waiting and now - self._waiting[0].timestamp > MAX_AGE_MICROSECONDS:
            self.flush()
        if self._rows is None:
            self._rows = np.zeros((BATCH, _WIDTH))
            self._address = self._rows.ctypes.data
        place = len(self._waiting)
        row = self._address + place * _ROW_BYTES
        self._native.summary(address, code, shape, strides, -math.inf, math.inf, row)
        self._waiting.append(Summary(op, positions, node, slot, now, len(shape)))
        if self._bad.limit:
            self._bad.note(node.tensor(slot), kinds_of(self._rows[place]))
        if place + 1 == BATCH:
            self.flush()
        return True

    def flush(self) -> None:
        """Hand over what is waiting."""
        if not self._waiting or self._rows is None:
            return
        waiting, self._waiting = self._waiting, []
        hand_over_summaries(self._publisher, waiting, self._rows[: len(waiting)])


def hand_over_summaries(
    publisher: Publisher, summaries: Sequence[Summary], values: npt.NDArray[np.float64]
) -> None:
    """Give summaries to their sinks, one batch to each, and count those that are muted.

    Args:
        publisher: of the run.
        summaries: in order of time.
        values: a row for each, with room for the largest; it is copied.
    """
    table = publisher.keys
    rows = np.zeros(len(summaries), RECORD_ROW)
    rows["key"] = [table.add((s.node.name, s.slot, s.op.name, s.node.device, "float64")) for s in summaries]
    rows["rank"] = 1
    rows["timestamp"] = [s.timestamp for s in summaries]
    rows["dims"][:, 0] = [PILL_SIZE + s.rank for s in summaries]
    rows["nbytes"] = 8 * rows["dims"][:, 0]
    muted = np.array([s.op.mute_if_healthy for s in summaries]) & are_healthy(values)
    for position in sorted({position for s in summaries for position in s.positions}):
        here = np.array([position in s.positions for s in summaries])
        publisher.count_muted(int(np.count_nonzero(here & muted)), (position,))
        kept = here & ~muted
        if kept.any():
            publisher.hand_over_batch(_batch(table, rows[kept], values[kept]), (position,))


def _batch(table: KeyTable, rows: npt.NDArray[Any], values: npt.NDArray[np.float64]) -> RecordBatch:
    rows["offset"] = np.arange(len(rows)) * values.strides[0]
    return RecordBatch(table, rows, values)
