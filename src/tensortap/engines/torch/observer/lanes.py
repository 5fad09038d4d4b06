"""What is watched, as the observer knows it: lanes, one for each debug op and set of destinations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensortap.engines.torch.observer.packed import PackedBatch
from tensortap.ops.debug_ops import DebugIdentity, DebugNumericSummary, DebugOp
from tensortap.ops.dtypes import CODES, HALF_COMPLEX
from tensortap.records import RECORD_ROW, KeyTable, Node, RecordBatch
from tensortap.seam.pattern import dtype_of

if TYPE_CHECKING:
    from tensortap.engines.observe.watching import Watching
    from tensortap.engines.torch.interceptor import RunPlan

__all__ = ["Lanes"]

_BY_PYTHON = (-1, 0)
_SUMMARY, _COPY = 0, 1


def _is_recorded_as_it_is(dtype: str) -> bool:
    return dtype in CODES and dtype not in HALF_COMPLEX


class Lanes:
    """The watches of runs that are watched alike. The observer asks once for each output and remembers.

    Args:
        keys: the table of the watches' keys; None if nothing is watched.
    """

    def __init__(self, library: Any, keys: KeyTable | None) -> None:
        self._library = library
        self._lanes: dict[tuple[DebugOp, tuple[int, ...]], int] = {}
        self._destinations: list[Sequence[int]] = []
        self._are_summaries: list[bool] = []
        self._last: tuple[DebugOp | None, tuple[int, ...], int] = (None, (), -1)
        # What was wanted of an output, if that was one summary: itself, its lane and op.
        self._summarised: tuple[Any, int, str] = (None, -1, "")
        self.keys = keys
        self.handle = library.tt_new_plan()

    def __del__(self) -> None:
        self._library.tt_delete_plan(self.handle)

    def open(self, observer: int) -> None:
        """Make the lanes of this plan for a run."""
        for op, _ in self._lanes:
            self._add_lane(op, observer)

    def taps(self, plan: RunPlan, node: Node, slot: int, observer: int) -> tuple[int, ...]:
        """What to do with an output: pairs of a lane and a key; lane -1 shows it to Python."""
        if plan.taps or (plan.captures and node.tensor(slot) in plan.captures):
            return _BY_PYTHON
        wanted = None if plan.watching is None else plan.watching.wants(node, slot)
        if wanted is None or self.keys is None:
            return ()
        summarised, lane, name = self._summarised
        if wanted is summarised:  # as of every tensor, most often: no more is to be found out
            return lane, self.keys.add((node.name, slot, name, node.device, "float64"))
        taps: list[int] = []
        for op, positions in wanted:
            dtype = "float64" if type(op) is DebugNumericSummary else dtype_of(node, slot)
            can_be_copied = type(op) is DebugIdentity and _is_recorded_as_it_is(dtype)
            if type(op) is not DebugNumericSummary and not can_be_copied:
                return _BY_PYTHON
            lane = self._lane_of(op, positions, observer)
            taps += (lane, self.keys.add((node.name, slot, op.name, node.device, dtype)))
            if len(wanted) == 1 and type(op) is DebugNumericSummary:
                self._summarised = wanted, lane, op.name
        return tuple(taps)

    def _lane_of(self, op: DebugOp, positions: tuple[int, ...], observer: int) -> int:
        last_op, last_positions, lane = self._last
        if op is last_op and positions is last_positions:  # as with most nodes: no hash is made
            return lane
        found = self._lanes.get((op, positions))
        if found is None:
            found = self._lanes[op, positions] = len(self._lanes)
            self._destinations.append(positions)
            self._are_summaries.append(isinstance(op, DebugNumericSummary))
            self._add_lane(op, observer)
        self._last = op, positions, found
        return found

    def hand_over(
        self, watching: Watching, lane: int, rows: Any, data: Any, has_bad: bool, base: int, nbytes: int
    ) -> None:
        """Give a block of records to their sinks."""
        assert self.keys is not None
        batch: RecordBatch
        if self._are_summaries[lane]:
            batch = PackedBatch(self.keys, rows, data, base, has_bad, nbytes, self._library.tt_unpack)
        else:
            batch = RecordBatch(
                self.keys, np.frombuffer(rows, RECORD_ROW), np.frombuffer(data, np.uint8), has_bad, nbytes
            )
        watching.publisher.hand_over_batch(batch, self._destinations[lane])

    def count_muted(self, watching: Watching, lane: int, number: int) -> None:
        """Count the summaries that were healthy and not to be told."""
        watching.publisher.count_muted(number, self._destinations[lane])

    def _add_lane(self, op: DebugOp, observer: int) -> None:
        if isinstance(op, DebugNumericSummary):
            bounds = (op.lower_bound, op.upper_bound)
            self._library.tt_add_lane(observer, _SUMMARY, *bounds, op.mute_if_healthy)
        else:
            self._library.tt_add_lane(observer, _COPY, 0.0, 0.0, False)
