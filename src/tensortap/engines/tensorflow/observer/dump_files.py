"""Records made of the files that TensorFlow's debug ops have left."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.util import event_pb2

from tensortap.engines.tensorflow.observer.interface import EXECUTION, Apart, Block, Flag, Kind, Lane, Seen
from tensortap.engines.tensorflow.observer.partition_graphs import ChosenGraph
from tensortap.ops import kernel
from tensortap.pill import KIND_NAN, is_healthy, kinds_of
from tensortap.records import MAX_BATCH_RANK, RECORD_ROW

__all__ = ["DEBUG_OP", "Reading", "dumped_in"]

DEBUG_OP = "DebugIdentity"


@dataclass(frozen=True)
class Dumped:
    """A tensor in a file."""

    tensor: str
    timestamp: int
    path: Path

    def value(self) -> npt.NDArray[Any]:
        event = event_pb2.Event.FromString(self.path.read_bytes())
        return np.asarray(tf.make_ndarray(event.summary.value[0].tensor))


def dumped_in(directory: Path) -> list[Dumped]:
    """What a run has left, in the order of time. Files are named `name/of/node_slot_DebugIdentity_microseconds`."""
    found = []
    for device in directory.glob("_tfdbg_device_*"):
        for path in device.rglob(f"*_{DEBUG_OP}_*"):
            head, _, time = str(path.relative_to(device)).rpartition(f"_{DEBUG_OP}_")
            node, _, slot = head.rpartition("_")
            timestamp, _, repeated = time.partition("-")
            found.append((int(timestamp), int(repeated or 0), Dumped(f"{node}:{slot}", int(timestamp), path)))
    return [dumped for *_, dumped in sorted(found, key=lambda each: each[:2])]


@dataclass
class Reading:
    """Makes records of what a run has left.

    Attributes:
        lanes: ways of recording.
        keep_bad: how many makers of bad values are recorded whole.
        value_limit: bytes of values beyond which they are dropped.
        shown: kinds of bad values that nodes have been shown making; kept up to date.
    """

    lanes: Sequence[Lane]
    keep_bad: int
    value_limit: int
    shown: dict[str, int]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    executions: list[tuple[Any, ...]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    apart: list[Apart] = field(default_factory=list)
    muted: list[int] = field(init=False)
    kinds: dict[str, int] = field(default_factory=dict)
    paths: dict[str, Dumped] = field(default_factory=dict)
    has_bad: bool = False
    dropped: int = 0
    kept: int = 0
    value_bytes: int = 0

    def __post_init__(self) -> None:
        self.muted = [0] * len(self.lanes)

    def seen(self) -> Seen:
        """All of it."""
        rows = np.array(self.rows, RECORD_ROW)
        executions = np.array(self.executions, EXECUTION)
        block = Block(rows, executions, np.frombuffer(self.data, np.uint8), self.has_bad, tuple(self.apart))
        return Seen((block,) if self.rows or self.apart else (), tuple(self.muted), self.dropped)

    def read(self, graphs: Iterable[ChosenGraph], dumped: Iterable[Dumped]) -> None:
        """Read the files of the run that executed these graphs."""
        known = {name: graph for graph in graphs for name in graph.places}
        for tensor, repeats in itertools.groupby(_by_node(dumped), key=lambda each: each.tensor):
            graph = known.get(tensor)
            if graph is not None:
                for iteration, each in enumerate(repeats):
                    self._read_one(graph, each, iteration)
        order = np.argsort([row[2] for row in self.rows], kind="stable").tolist()
        self.rows = [self.rows[place] for place in order]
        self.executions = [self.executions[place] for place in order]

    def _read_one(self, graph: ChosenGraph, dumped: Dumped, iteration: int) -> None:
        place = graph.places[dumped.tensor]
        lanes, number = int(graph.chosen[place]), graph.first + place
        self.paths[dumped.tensor] = dumped
        if not lanes:
            return
        value = dumped.value()
        found = 0
        for lane, way in enumerate(self.lanes):
            if not lanes >> lane & 1:
                continue
            if way.kind is Kind.VALUE:
                self._add_value(number, value, dumped.timestamp, (lane, 0, 0, iteration, 0))
            else:
                pill = kernel.summary(value, way.lower_bound, way.upper_bound)
                found |= kinds_of(pill)
                if way.mute_if_healthy and is_healthy(pill):
                    self.muted[lane] += 1
                else:
                    self._add(number, pill, dumped.timestamp, (lane, 0, 0, iteration, 0))
        if found:
            self.has_bad = True
            self._keep_if_made(graph, dumped, number, value, found)

    def _keep_if_made(
        self, graph: ChosenGraph, dumped: Dumped, number: int, value: npt.NDArray[Any], found: int
    ) -> None:
        """See bad_values.py for what counts as made."""
        node = dumped.tensor.rpartition(":")[0]
        names = [name for name in graph.inputs[node] if not graph.is_unreadable(name)]
        if not names or any(name not in self.paths for name in names):
            return  # it came in or was drawn, or it cannot be said what it was made of
        inputs = {name: self.paths[name].value() for name in names}
        inherited = 0
        for each in inputs.values():
            inherited |= kinds_of(kernel.summary(each))
        made = found & KIND_NAN & ~inherited if inherited else found
        before = self.shown.get(node, 0)
        if not made & ~before or self.kept >= self.keep_bad:
            return
        self.shown[node] = before | made
        self.kept += 1
        for name, each in inputs.items():
            place = graph.first + graph.places[name]
            self._add_value(place, each, dumped.timestamp, (-1, Flag.KEPT_INPUT, 0, 0, 0))
        self._add_value(number, value, dumped.timestamp, (-1, Flag.KEPT_OUTPUT, 0, 0, 0))

    def _add_value(
        self, number: int, value: npt.NDArray[Any], timestamp: int, execution: tuple[int, ...]
    ) -> None:
        self.value_bytes += value.nbytes
        if self.value_bytes > self.value_limit:
            self.dropped += 1
        elif value.dtype == object:
            texts = [each if isinstance(each, bytes) else str(each).encode() for each in value.reshape(-1)]
            self._add_apart(number, value, texts, timestamp, execution)
        elif value.ndim > MAX_BATCH_RANK:
            self._add_apart(number, value, value.tobytes(), timestamp, execution)
        else:
            self._add(number, value, timestamp, execution)

    def _add_apart(
        self,
        number: int,
        value: npt.NDArray[Any],
        data: Any,
        timestamp: int,
        execution: tuple[int, ...],
    ) -> None:
        place: Any = np.array(execution, EXECUTION)[()]
        self.apart.append(Apart(number, place, timestamp, value.shape, data))

    def _add(self, number: int, value: npt.NDArray[Any], timestamp: int, execution: tuple[int, ...]) -> None:
        self.data.extend(bytes(-len(self.data) % 64))
        dims = (*value.shape, *(0,) * (MAX_BATCH_RANK - value.ndim))
        self.rows.append((number, value.ndim, timestamp, len(self.data), value.nbytes, dims))
        self.executions.append(execution)
        self.data += value.tobytes()


def _by_node(dumped: Iterable[Dumped]) -> list[Dumped]:
    """All executions of a tensor together, tensors in the order of their first one."""
    first: dict[str, int] = {}
    listed = list(dumped)
    for place, each in enumerate(listed):
        first.setdefault(each.tensor, place)
    return sorted(listed, key=lambda each: first[each.tensor])
