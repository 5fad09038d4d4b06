"""Watched tensors on their way out: from live tensors to what debug ops can read.

Tensors in host memory are read in place, at once. Numeric summaries of tensors on another device are reduced
there and brought over in one copy when the run ends, so that the device is never waited for in the middle of
a step; what needs the whole value is copied when it is watched.
"""

from __future__ import annotations

from collections.abc import Container, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensortap.engines.observe.bad_values import BadValues
from tensortap.engines.observe.pills import Pills, Summary, hand_over_summaries
from tensortap.engines.observe.publishing import publish_whole
from tensortap.engines.tensors import RemoteSummaries, Tensors
from tensortap.ops.debug_ops import DebugNumericSummary
from tensortap.records import Circumstances, Node, RunInfo

if TYPE_CHECKING:
    from tensortap.sink.publisher import Publisher
    from tensortap.watch.plan import Wanted

__all__ = ["Watching"]


@dataclass
class _Deferred:
    """Summaries that are being made on their device, and whose they will be."""

    summaries: RemoteSummaries
    targets: list[Summary] = field(default_factory=list)


class Watching:
    """Shows the watched tensors of one run to its publisher.

    Args:
        tensors: of the engine.
        publisher: of the run.
        keep_bad: how many makers of bad values are recorded whole.
        bad_shown: which have been, in earlier runs; kept up to date.
        unwritten: types of ops whose outputs nobody has written yet.

    Attributes:
        publisher: where records go.
    """

    def __init__(
        self,
        tensors: Tensors,
        publisher: Publisher,
        keep_bad: int,
        bad_shown: MutableMapping[str, int],
        unwritten: Container[str] = (),
    ) -> None:
        self._tensors = tensors
        self._unwritten = unwritten
        self.publisher = self._publisher = publisher
        self._wants = publisher.wants
        self._deferred: dict[tuple[float, float], _Deferred] = {}
        self.bad = BadValues(tensors, publisher, keep_bad, bad_shown)
        self._pills = self.bad.waiting = Pills(tensors, publisher, self.bad)

    @property
    def may_go_on(self) -> bool:
        """Whether the run is over, and what has watched it may watch another one."""
        return self._publisher.may_go_on and not self._deferred

    def begin_next(self, info: RunInfo) -> None:
        """Watch another run, which is watched like the last one."""
        self._publisher.begin_next(info)
        self.bad.begin_next()

    @property
    def stops(self) -> bool:
        """Whether a debug server has set breakpoints: at one, `tap` waits, and `replacement` may have a value."""
        return bool(self._publisher.breakpoints)

    def wants(self, node: Node, slot: int) -> Wanted | None:
        """What to do with an output; None for nothing. What nobody has written yet is neither good nor bad."""
        wanted = self._wants(node, slot)
        return None if node.op_type in self._unwritten else wanted

    def tap(self, node: Node, slot: int, tensor: Any) -> None:
        """Called for every tensor of the run."""
        wanted = self.wants(node, slot)
        if wanted is None:
            return
        seen = self._tensors.readable(tensor)
        is_itself = seen is tensor
        if seen is not None:
            tensor = seen
        if self.stops and self._publisher.stops_at(wanted, node, slot):
            pass  # published at once, whatever it is and wherever
        elif seen is not None and self._tensors.is_elsewhere(tensor):
            wanted = self._defer_summaries(wanted, node, slot, tensor)
        elif len(wanted) == 1 and is_itself and self._pills.add(wanted[0], node, slot, tensor):
            return
        if wanted:
            self._pills.flush()  # records leave in the order of time
            publish_whole(self._tensors, self._publisher, wanted, node, slot, tensor, self._publisher.now())

    def summarised(self, tensors: Sequence[tuple[Node, int, int]], rows: npt.NDArray[np.float64]) -> None:
        """Take summaries that compiled code has made itself.

        Args:
            tensors: node, slot and rank of each.
            rows: a row for each.
        """
        self._pills.flush()  # records leave in the order of time
        now = self._publisher.now()
        wanted = [
            (place, Summary(op, positions, node, slot, now, rank))
            for place, (node, slot, rank) in enumerate(tensors)
            for op, positions in self._wants(node, slot) or ()
            if isinstance(op, DebugNumericSummary)
        ]
        if wanted:
            places, summaries = zip(*wanted, strict=True)
            hand_over_summaries(self._publisher, summaries, rows[list(places)])

    def finish(
        self,
        nodes: Sequence[Node],
        error: str | None,
        unrecorded: int = 0,
        circumstances: Circumstances | None = None,
    ) -> None:
        """The run is over: bring the summaries over, then tell the publisher."""
        try:
            self._pills.flush()
            self._collect()
        finally:
            self._publisher.finish(nodes, error, unrecorded, circumstances)

    def _defer_summaries(self, wanted: Wanted, node: Node, slot: int, tensor: Any) -> Wanted:
        """Start the summaries among the wanted debug ops on the device; what is left to do."""
        left = []
        for op, positions in wanted:
            if not isinstance(op, DebugNumericSummary):
                left.append((op, positions))
                continue
            bounds = (op.lower_bound, op.upper_bound)
            if bounds not in self._deferred:
                self._deferred[bounds] = _Deferred(self._tensors.remote_summaries(*bounds))
            deferred = self._deferred[bounds]
            try:
                deferred.summaries.add(tensor)
            except Exception as error:
                self._publisher.failed(op, positions, node, slot, error)
            else:
                now = self._publisher.now()
                rank = len(self._tensors.spec_of(tensor).shape)
                deferred.targets.append(Summary(op, positions, node, slot, now, rank))
        return tuple(left)

    def _collect(self) -> None:
        for deferred in self._deferred.values():
            rows = deferred.summaries.collect_rows()
            values = np.zeros((len(rows), max(map(len, rows), default=0)))
            for place, row in enumerate(rows):
                values[place, : len(row)] = row
            hand_over_summaries(self._publisher, deferred.targets, values)
        self._deferred.clear()
