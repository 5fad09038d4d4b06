"""Watched tensors on their way out: from what an observer recorded to the sinks of a run.

An observer knows tensors by number and ways of recording by lane. A plan of watches says which debug ops a tensor is
watched with. Between them, once for every graph that is executed: which lane serves which debug op, and which number
has which key. A run then moves whole blocks of records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.dtypes import numpy_dtype
from tensortap.engines.tensorflow.executed import KnownGraph
from tensortap.engines.tensorflow.graph import TensorFlowGraph
from tensortap.engines.tensorflow.guard import bad_rows_of
from tensortap.engines.tensorflow.observer.interface import (
    STOP,
    Apart,
    Block,
    ExecutedGraph,
    Kind,
    Lane,
    Observer,
    Watch,
)
from tensortap.ops.debug_ops import DebugIdentity, DebugNumericSummary, DebugOp
from tensortap.ops.view import TensorView
from tensortap.records import KeyTable, Node, Record, RecordBatch
from tensortap.seam.options import Tap
from tensortap.sink.publisher import Publisher
from tensortap.watch.plan import Wanted, WatchPlan

__all__ = ["Delivery", "PlanWatch"]

_NOT_HERE = -1
_KEPT = -1  # the lane of a value that was kept beside a bad one


class PlanWatch:
    """What the observer watches for one plan, in all runs that have it.

    Args:
        graph: what the program made.
        observer: sees tensors.
        plan: what is wanted; None if only taps are.
        keep_bad: how many makers of bad values are recorded whole in a run.
        taps: whether somebody wants to see the value of every tensor.
        breakpoints: watch keys at which a debug server has runs stop.
    """

    def __init__(
        self,
        graph: TensorFlowGraph,
        observer: Observer,
        plan: WatchPlan | None,
        keep_bad: int,
        taps: bool,
        breakpoints: frozenset[str] = frozenset(),
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._taps = taps
        self._breakpoints = breakpoints
        self.on_stop: dict[int, Callable[[Node, int, npt.NDArray[Any]], None]] = {}
        """What to call where a run stops, by the number of the run: in a thread of the runtime, which waits."""
        self._known: dict[int, KnownGraph] = {}
        self._lock = threading.Lock()
        self.on_full: dict[int, Callable[[], None]] = {}
        """What to call when blocks can be taken, by run: in a thread of the runtime."""
        self.lanes: list[Lane] = []
        self.lane_of: dict[DebugOp, int] = {}
        self.value_lane: int | None = None
        for op in () if plan is None else plan.debug_ops:
            if isinstance(op, DebugNumericSummary):
                self.lane_of[op] = len(self.lanes)
                self.lanes.append(Lane(Kind.PILL, op.lower_bound, op.upper_bound, op.mute_if_healthy))
            else:
                self.lane_of[op] = self._value_lane()
        if taps:
            self._value_lane()
        self.watch: Watch = observer.watch(
            self.lanes,
            self._choose,
            keep_bad=keep_bad,
            on_full=self._blocks_are_full,
            on_stop=self._stopped if breakpoints else None,
            graph=graph.tf_graph,
        )
        self._deliveries: dict[int, tuple[KeyTable, Delivery]] = {}

    def _value_lane(self) -> int:
        if self.value_lane is None:
            self.value_lane = len(self.lanes)
            self.lanes.append(Lane(Kind.VALUE))
        return self.value_lane

    def _blocks_are_full(self) -> None:
        for take in tuple(self.on_full.values()):
            take()

    def _stopped(self, run: int, number: int, value: npt.NDArray[Any]) -> None:
        found, tell = self.tensor(number), self.on_stop.get(run)
        if found is not None and tell is not None:
            tell(found[0], found[1], value)

    def _choose(self, executed: ExecutedGraph) -> npt.ArrayLike:
        """Which tensors of a graph that is about to be executed go into which lanes."""
        known = self.known(executed)
        chosen = []
        for place, slot in executed.outputs:
            node = known.nodes[place]
            chosen.append(0 if node is None else self._lanes_for(node, slot, _dtype(executed, place, slot)))
        return chosen

    def _lanes_for(self, node: Node, slot: int, dtype: str) -> int:
        if numpy_dtype(dtype) is None and dtype != "string":
            return 0
        bits = 1 << self._value_lane() if self._taps and not node.is_view else 0
        wanted = (None if self._plan is None else self._plan.wanted(node, slot)) or ()
        if self._breakpoints and any(
            f"{node.tensor(slot)}:{op.name}" in self._breakpoints for op, _ in wanted
        ):
            return bits | STOP  # published at once, where it stops
        for op, _ in wanted:
            if dtype != "string" or not isinstance(op, DebugNumericSummary):
                bits |= 1 << self.lane_of[op]
        return bits

    def known(self, executed: ExecutedGraph) -> KnownGraph:
        """A graph under the names the user knows."""
        with self._lock:
            found = self._known.get(executed.number)
            if found is None:
                found = self._known[executed.number] = KnownGraph(self._graph, executed)
            return found

    def graphs(self, numbers: Iterable[int]) -> list[KnownGraph]:
        """Several of them, by number."""
        return [self.known(self.watch.graphs[number]) for number in sorted(numbers)]

    def tensor(self, number: int) -> tuple[Node, int, str] | None:
        """Node, slot and dtype of a recorded tensor."""
        tensor = self.watch.tensors[number]
        executed = self.watch.graphs[tensor.graph]
        node = self.known(executed).nodes[tensor.node]
        return None if node is None else (node, tensor.slot, _dtype(executed, tensor.node, tensor.slot))

    def bad_tensors(self, block: Block) -> Iterator[str]:
        """Names of the tensors of a block whose pills tell of a bad value."""
        pills = [lane for lane, each in enumerate(self.lanes) if each.kind is Kind.PILL]
        for number, _ in bad_rows_of(block, pills):
            found = self.tensor(number)
            if found is not None:
                yield found[0].tensor(found[1])

    def delivery(self, publisher: Publisher) -> Delivery:
        """What brings records to a publisher: the same for all whose keys have the same numbers."""
        table = publisher.keys
        known = self._deliveries.get(id(table))
        if known is None:
            if len(self._deliveries) > 8:  # of runs with gates, which open and close
                self._deliveries.clear()
            known = self._deliveries[id(table)] = table, Delivery(self, table)
        return known[1]

    def close(self) -> None:
        """Nobody will use it again."""
        self.watch.close()


def _dtype(executed: ExecutedGraph, place: int, slot: int) -> str:
    node = executed.nodes[place]
    return (*node.dtypes, *node.written)[slot]


def _nothing() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass
class _Channel:
    """The records of one debug op, as they are in a lane: keys and destinations by number of the tensor."""

    op: DebugOp
    lane: int
    keys: npt.NDArray[np.int64] = field(default_factory=_nothing)
    places: npt.NDArray[np.int64] = field(default_factory=_nothing)

    def extend(self, added: Sequence[tuple[int, int]]) -> None:
        """Take in key and destination of tensors that are new."""
        more = np.array(added, np.int64).reshape(-1, 2)
        self.keys = np.concatenate([self.keys, more[:, 0]])
        self.places = np.concatenate([self.places, more[:, 1]])


class Delivery:
    """Brings the records of a plan's runs to their sinks."""

    def __init__(self, watched: PlanWatch, table: KeyTable) -> None:
        self._watched = watched
        self._table = table
        self._channels = [
            _Channel(op, lane)
            for op, lane in watched.lane_of.items()
            if isinstance(op, (DebugNumericSummary, DebugIdentity))
        ]
        self._kept = _Channel(DebugIdentity(), _KEPT)
        self._others: dict[int, list[tuple[DebugOp, tuple[int, ...]]]] = {}
        self._destinations: dict[tuple[int, ...], int] = {}
        self._lock = threading.Lock()
        self._extended = 0

    def deliver(self, block: Block, publisher: Publisher) -> None:
        """Hand the records of a block over."""
        self._extend(publisher)
        numbers = block.rows["key"].astype(np.int64)
        lanes = block.executions["lane"]
        for channel in (*self._channels, self._kept):
            here = lanes == channel.lane
            if here.any():
                self._send(channel, block, here, numbers, publisher)
        if self._others:
            self._apply_others(block, numbers, lanes, publisher)
        for apart in block.apart:
            self._send_apart(apart, publisher)

    def count_muted(self, muted: Sequence[int], publisher: Publisher) -> None:
        """Tell how many healthy summaries were not recorded."""
        everywhere = tuple(range(len(publisher.sinks)))
        for lane, number in enumerate(muted):
            if number:
                # All tensors of a lane have the same debug op, and in practice the same destinations.
                places = {
                    place for channel in self._channels if channel.lane == lane for place in channel.places
                }
                known = [positions for positions, place in self._destinations.items() if place in places]
                publisher.count_muted(int(number), known[0] if len(known) == 1 else everywhere)

    def _send(
        self,
        channel: _Channel,
        block: Block,
        here: npt.NDArray[np.bool_],
        numbers: npt.NDArray[np.int64],
        publisher: Publisher,
    ) -> None:
        keys = channel.keys[numbers]
        here = here & (keys >= 0)
        if not here.any():
            return
        rows = block.rows[here].copy()
        rows["key"] = keys[here]
        places = channel.places[numbers[here]]
        order = np.argsort(rows["timestamp"], kind="stable")
        rows, places = rows[order], places[order]
        has_bad = block.has_bad if isinstance(channel.op, DebugNumericSummary) else None
        destinations = {place: positions for positions, place in self._destinations.items()}
        for place in np.unique(places):
            batch = RecordBatch(self._table, rows[places == place], block.data, has_bad)
            publisher.hand_over_batch(batch, destinations[int(place)])

    def _apply_others(
        self, block: Block, numbers: npt.NDArray[np.int64], lanes: npt.NDArray[Any], publisher: Publisher
    ) -> None:
        """Debug ops that need the value and make something else of it."""
        for place in np.flatnonzero(lanes == self._watched.value_lane).tolist():
            wanted = self._others.get(int(numbers[place]))
            found = self._watched.tensor(int(numbers[place])) if wanted else None
            if wanted and found is not None:
                node, slot, dtype = found
                value = array_of(block, place, dtype)
                stamp = int(block.rows["timestamp"][place])
                publisher.publish(tuple(wanted), node, slot, TensorView.of_numpy(value), node.device, stamp)

    def _send_apart(self, apart: Apart, publisher: Publisher) -> None:
        found = self._watched.tensor(apart.tensor)
        if found is None:
            return
        node, slot, dtype = found
        for op, positions in publisher.wants(node, slot) or ():
            if isinstance(op, DebugIdentity):
                record = Record(
                    node.name, slot, op.name, node.device, apart.timestamp, dtype, apart.shape, apart.data
                )
                publisher.hand_over(record, positions)

    def _extend(self, publisher: Publisher) -> None:
        """Work out the keys of tensors that are new."""
        with self._lock:
            count = len(self._watched.watch.tensors)
            if self._extended == count:
                return
            everywhere = tuple(range(len(publisher.sinks)))
            channels = (*self._channels, self._kept)
            added: list[list[tuple[int, int]]] = [[] for _ in channels]
            for number in range(self._extended, count):
                found = self._watched.tensor(number)
                wanted: Wanted = () if found is None else publisher.wants(found[0], found[1]) or ()
                positions_of = dict(wanted)
                for channel, numbers in zip(channels, added, strict=True):
                    positions = everywhere if channel is self._kept else positions_of.pop(channel.op, None)
                    numbers.append(self._numbers(channel, found, positions))
                if positions_of:
                    self._others[number] = list(positions_of.items())
            for channel, numbers in zip(channels, added, strict=True):
                channel.extend(numbers)
            self._extended = count

    def _numbers(
        self, channel: _Channel, found: tuple[Node, int, str] | None, positions: tuple[int, ...] | None
    ) -> tuple[int, int]:
        """Those of the key of a tensor, and of where its records go."""
        if found is None or not positions:
            return _NOT_HERE, _NOT_HERE
        node, slot, dtype = found
        recorded = "float64" if isinstance(channel.op, DebugNumericSummary) else dtype
        key = self._table.add((node.name, slot, channel.op.name, node.device, recorded))
        return key, self._destinations.setdefault(positions, len(self._destinations))


def array_of(block: Block, place: int, dtype: str) -> npt.NDArray[Any]:
    """A recorded value as an array, over the memory of its block."""
    row = block.rows[place]
    shape = tuple(row["dims"][: row["rank"]].tolist())
    memory = memoryview(block.data).cast("B")[int(row["offset"]) : int(row["offset"] + row["nbytes"])]
    return np.frombuffer(memory, numpy_dtype(dtype)).reshape(shape)


def show_to_taps(watched: PlanWatch, block: Block, taps: Sequence[Tap]) -> None:
    """Show recorded values to functions that want to see every tensor."""
    for place in np.flatnonzero(block.executions["lane"] == watched.value_lane).tolist():
        found = watched.tensor(int(block.rows["key"][place]))
        if found is not None and not found[0].is_view:
            node, slot, dtype = found
            value = array_of(block, place, dtype)
            for tap in taps:
                tap(node, slot, value)
