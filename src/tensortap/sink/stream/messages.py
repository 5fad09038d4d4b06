"""What the stream of one run says, as messages, in its order: metadata, records as they come, graphs, the end.

The graph of an eager program is known when the run is over, so it comes last; it is sent when the server does not have
it already. tfdbg sends graphs first (F6), and its own server leaves those out of the directory it writes that come
later. So a server that is not ours gets a graph first that is known before the run: told by the engine, or that of the
last run with the same fetches and feeds.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from tensortap.records import MAX_BATCH_RANK, RECORD_ROW, KeyTable, Node, Record, RecordBatch
from tensortap.sink.base import RunEnd, by_device
from tensortap.sink.parcel import SMALL_BYTES, company
from tensortap.wire.batches import BatchEncoder
from tensortap.wire.events import (
    RunEnding,
    StreamMetadata,
    graph_events,
    metadata_event,
    run_end_event,
    tensor_events,
)
from tensortap.wire.graph_def import nodes_to_proto
from tensortap.wire.values import as_bytes, numpy_dtype

__all__ = ["Graph", "GraphCache", "Messages"]

_KINDS_KEPT = 8
"""Kinds of runs, by fetches and feeds, whose graphs are remembered."""


class Graph(NamedTuple):
    """The graph of one device."""

    device: str
    content: bytes
    digest: str


class GraphCache:
    """The graphs of the last runs, and which of them the server has.

    Args:
        sends_once: a graph that was taken once counts as known to the server.
    """

    def __init__(self, sends_once: bool = True) -> None:
        self._sends_once = sends_once
        self._lock = threading.Lock()
        self._nodes: tuple[Node, ...] = ()
        self._gated: tuple[str, ...] = ()
        self._graphs: list[Graph] = []
        self._known: set[str] = set()
        self._led: set[tuple[str, str]] = set()
        self._last: OrderedDict[Hashable, list[Graph]] = OrderedDict()

    def of(self, nodes: Sequence[Node], gated: Sequence[str]) -> list[Graph]:
        """The graph of every device that executed some of these nodes."""
        with self._lock:
            key = tuple(nodes), tuple(gated)
            if (self._nodes, self._gated) != key:  # the same objects run after run: comparing is cheap
                self._nodes, self._gated = key
                self._graphs = [_graph(device, each, gated) for device, each in by_device(nodes).items()]
            return self._graphs

    def take_unknown(self, graphs: Sequence[Graph]) -> list[Graph]:
        """Those that the server does not have; from now on it counts as having them."""
        with self._lock:
            unknown = [graph for graph in graphs if graph.digest not in self._known]
            if self._sends_once:
                self._known.update(graph.digest for graph in unknown)
            return unknown

    def take_leading(self, kind: Hashable, path: str, foreseen: Sequence[Graph]) -> list[Graph]:
        """Those that a run should begin with: foreseen, or of the last such run, and not sent first for this path."""
        with self._lock:
            expected = foreseen or self._last.get(kind, ())
            leading = [graph for graph in expected if (path, graph.digest) not in self._led]
            self._led.update((path, graph.digest) for graph in leading)
            self._known.update(graph.digest for graph in leading)
            return leading

    def remember(self, kind: Hashable, graphs: list[Graph]) -> None:
        """The graphs that a run of some kind has executed."""
        with self._lock:
            self._last[kind] = graphs
            self._last.move_to_end(kind)
            while len(self._last) > _KINDS_KEPT:
                self._last.popitem(last=False)

    def forget(self) -> None:
        """The server may be another one, or may not have got what was sent."""
        with self._lock:
            self._known.clear()
            self._led.clear()


def _graph(device: str, nodes: Sequence[Node], gated: Sequence[str]) -> Graph:
    message = nodes_to_proto(nodes)
    names = {node.name for node in nodes}
    for key in gated:
        node, slot, debug_op = key.rsplit(":", 2)
        if node in names:
            # The nodes by which a server learns which gates there are, named as in tfdbg's graphs (E9).
            debug = message.node.add(name=f"__dbg_{node}:{slot}_0_{debug_op}", op=debug_op, device=device)
            debug.input.append(node if slot == "0" else f"{node}:{slot}")
            debug.attr["gated_grpc"].b = True
    content = message.SerializeToString(deterministic=True)
    return Graph(device, content, hashlib.sha256(content).hexdigest())


class Messages:
    """Makes the messages of one stream.

    Args:
        graphs: of the server.
        metadata: what is said about the run.
    """

    def __init__(self, graphs: GraphCache, metadata: StreamMetadata) -> None:
        self._graphs = graphs
        self._metadata = metadata
        self._table = KeyTable()
        self._batches: BatchEncoder | None = None

    @property
    def _kind(self) -> Hashable:
        info = self._metadata.info
        return info.input_names, info.output_names, info.target_nodes

    def leading(self, foreseen: RunEnd) -> Iterator[list[bytes]]:
        """The messages of each graph that is known before the run and comes first."""
        known = self._graphs.of(foreseen.nodes, foreseen.gated) if foreseen.nodes else ()
        for graph in self._graphs.take_leading(self._kind, self._metadata.grpc_path, known):
            yield self._events(graph)

    def opening(self) -> bytes:
        """Which run this is."""
        return metadata_event(self._metadata)

    def use_batches(self) -> None:
        """The server takes batches, and wants to know how runs end."""
        self._batches = BatchEncoder()

    def of(
        self, items: Sequence[Record | RecordBatch], not_sendable: Callable[[Record, Exception], None]
    ) -> Iterator[bytes]:
        """Records and batches in their order; what has no form in the protocol goes to `not_sendable`."""
        if self._batches is None:
            for item in items:
                for record in (item,) if isinstance(item, Record) else item:
                    yield from self._event(record, not_sendable)
            return
        for kind, group in groupby(items, _company):
            neighbours: list[Any] = list(group)
            if kind == "alone":
                for record in neighbours:
                    yield from self._event(record, not_sendable)
            elif kind == "together":
                yield from self._batches.encode(_batch_of(neighbours, self._table))
            else:
                yield from self._batches.encode(RecordBatch.joined(neighbours))

    def single(self, record: Record) -> Iterator[bytes]:
        """One record by itself, as tfdbg sends it, so that the server can reply to it."""
        return tensor_events(record)

    def _event(self, record: Record, not_sendable: Callable[[Record, Exception], None]) -> Iterator[bytes]:
        try:
            yield from tensor_events(record)
        except ValueError as error:
            not_sendable(record, error)

    def graphs(self, end: RunEnd) -> Iterator[list[bytes]]:
        """The messages of each graph that the server does not have yet."""
        graphs = self._graphs.of(end.nodes, end.gated)
        if self._batches is None:
            self._graphs.remember(self._kind, graphs)
        for graph in self._graphs.take_unknown(graphs):
            yield self._events(graph)

    def _events(self, graph: Graph) -> list[bytes]:
        return list(graph_events(graph.content, graph.device, self._metadata.info.timestamp))

    def ending(self, end: RunEnd, counts: dict[str, int]) -> Iterator[bytes]:
        """How the run ended, for servers that want to know."""
        if self._batches is not None:
            graphs = self._graphs.of(end.nodes, end.gated)
            digests = {each.device: each.digest for each in graphs}
            yield run_end_event(RunEnding(end.error, counts, digests, end.circumstances.as_dict()))


def _company(item: Record | RecordBatch) -> Any:
    """Equal for neighbours that travel in one batch."""
    if isinstance(item, RecordBatch):
        return company(item)
    fits = (
        item.data is not None
        and item.initialized
        and len(item.shape) <= MAX_BATCH_RANK
        and item.nbytes <= SMALL_BYTES
        and numpy_dtype(item.dtype) is not None
    )
    return "together" if fits else "alone"


def _batch_of(records: Sequence[Record], table: KeyTable) -> RecordBatch:
    rows = np.zeros(len(records), RECORD_ROW)
    pieces: list[bytes | memoryview] = []
    position = 0
    for place, record in enumerate(records):
        data = as_bytes(record.data)
        key = (record.node_name, record.output_slot, record.debug_op, record.device, record.dtype)
        dims = record.shape + (0,) * (MAX_BATCH_RANK - len(record.shape))
        rows[place] = (table.add(key), len(record.shape), record.timestamp, position, len(data), dims)
        padding = -len(data) % 8
        pieces += (data, bytes(padding))
        position += len(data) + padding
    return RecordBatch(table, rows, b"".join(pieces))
