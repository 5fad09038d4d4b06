"""The portable observer: TensorFlow's own debug ops, and what they leave in a directory in memory.

Nothing has to be built for it. TensorFlow copies every watched tensor, writes it to a file of its own, and we read them
when the run is over; if everything is watched, a run takes several times as long. Debug ops are told the names of
nodes before the runtime has made the graph that it executes. So in the first run of a graph they get those that the
program made, and from the second on those that were chosen of the nodes that have been executed. Three things are not
seen: bodies of functions, the variables that an update has written, and tensors beyond 2 GB, which TensorFlow leaves
out without a word.

The other way of TensorFlow's to deliver what debug ops see, a callback in memory, ends the process if nobody has
registered one, and that can be done in C++ only.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tensortap.engines.tensorflow.observer.dtypes import lanes_for, unreadable
from tensortap.engines.tensorflow.observer.dump_files import DEBUG_OP, Reading, dumped_in
from tensortap.engines.tensorflow.observer.interface import (
    Armed,
    Block,
    Choose,
    ExecutedGraph,
    ExecutedNode,
    ExecutedTensor,
    Lane,
    Observer,
    OnStop,
    Seen,
    Watch,
)
from tensortap.engines.tensorflow.observer.partition_graphs import ChosenGraph, nodes_of

__all__ = ["PortableObserver"]

_MEMORY = Path("/dev/shm")


class PortableObserver(Observer):
    """Graphs of sessions are watched by TensorFlow's debug ops."""

    name = "portable"
    sees_functions = False
    needs_metadata = True
    stops = False

    def watch(
        self,
        lanes: Sequence[Lane],
        choose: Choose,
        *,
        keep_bad: int = 0,
        value_limit: int = 1 << 30,
        on_full: Callable[[], None] | None = None,
        on_stop: OnStop | None = None,
        graph: Any = None,
    ) -> Watch:
        """See `Observer.watch`."""
        return PortableWatch(lanes, choose, keep_bad, value_limit, graph)


class PortableWatch(Watch):
    """A watch, and the directories of its runs: one is enough unless runs overlap."""

    def __init__(
        self, lanes: Sequence[Lane], choose: Choose, keep_bad: int, value_limit: int, graph: Any
    ) -> None:
        self.graphs: list[ExecutedGraph] = []
        self.tensors: list[ExecutedTensor] = []
        self.lanes = tuple(lanes)
        self.keep_bad = keep_bad
        self.value_limit = value_limit
        self.shown: dict[str, int] = {}
        self._choose = choose
        self._graph = graph
        self._watched: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
        self._known: dict[tuple[str, ...], ChosenGraph] = {}
        self._lock = threading.Lock()
        self._free: list[Path] = []

    def arm(self) -> Armed:
        """See `Watch.arm`."""
        with self._lock:
            directory = self._free.pop() if self._free else self._new_directory()
        return PortableArmed(self, directory)

    def _new_directory(self) -> Path:
        place = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        directory = Path(tempfile.mkdtemp(prefix="tensortap-", dir=place))
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        return directory

    def give_back(self, directory: Path) -> None:
        """A run is over, another may use its directory: with a new one TensorFlow would make another executor."""
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with self._lock:
            self._free.append(directory)

    def close(self) -> None:
        """See `Watch.close`."""
        with self._lock:
            self._free.clear()

    def know(self, graph_def: Any) -> ChosenGraph:
        """The graph that a run has executed, chosen from when it is met for the first time."""
        nodes = tuple(nodes_of(graph_def))
        names = tuple(node.name for node in nodes)
        with self._lock:
            known = self._known.get(names)
            if known is None:
                known = self._known[names] = self._add_graph(nodes, graph_def)
            return known

    def watched(self) -> list[tuple[str, int]]:
        """Node and slot of the tensors that debug ops are to look at: what was chosen, and what may yet be."""
        graph = self._graph or tf.compat.v1.get_default_graph()
        with self._lock:
            key = (graph.version, len(self.graphs))
            if key not in self._watched:
                executed = {node.name for each in self.graphs for node in each.nodes}
                names = {
                    name
                    for known in self._known.values()
                    for name, place in known.places.items()
                    if known.chosen[place] or self.keep_bad
                }
                names.update(
                    output.name
                    for op in graph.get_operations()
                    if op.name not in executed
                    for output in op.outputs
                )
                pairs = (name.rsplit(":", 1) for name in sorted(names))
                self._watched = {key: [(node, int(slot)) for node, slot in pairs]}
            return self._watched[key]

    def _add_graph(self, nodes: tuple[ExecutedNode, ...], graph_def: Any) -> ChosenGraph:
        device = next((node.device for node in nodes if node.device), "")
        graph = ExecutedGraph(len(self.graphs), "", device, nodes, graph_def.SerializeToString())
        first = len(self.tensors)
        dtypes = [nodes[place].dtypes[slot] for place, slot in graph.outputs]
        self.graphs.append(graph)
        self.tensors += [
            ExecutedTensor(graph.number, place, slot, unreadable(dtype))
            for (place, slot), dtype in zip(graph.outputs, dtypes, strict=True)
        ]
        possible = np.array([lanes_for(dtype, self.lanes) for dtype in dtypes], np.uint32)
        return ChosenGraph(
            first,
            {f"{nodes[node].name}:{slot}": place for place, (node, slot) in enumerate(graph.outputs)},
            dtypes,
            {node.name: [name for name in node.inputs if name[0] != "^"] for node in nodes},
            np.asarray(self._choose(graph), np.uint32) & possible,
        )


class PortableArmed(Armed):
    """A run, and the directory that is its own until it is finished."""

    def __init__(self, watch: PortableWatch, directory: Path) -> None:
        self.number = 0  # no run of its kind stops
        self._watch = watch
        self._directory: Path | None = directory

    def merge_into(self, options: Any = None) -> Any:
        """See `Armed.merge_into`."""
        merged = tf.compat.v1.RunOptions(output_partition_graphs=True)
        if options is not None:
            merged.MergeFrom(options)
        for node, slot in self._watch.watched():
            merged.debug_options.debug_tensor_watch_opts.add(
                node_name=node,
                output_slot=slot,
                debug_ops=[DEBUG_OP],
                debug_urls=[f"file://{self._directory}"],
                tolerate_debug_op_creation_failures=True,
            )
        return merged

    def functions(self) -> AbstractContextManager[None]:
        """Functions are not seen."""
        return nullcontext()

    def take(self) -> tuple[Block, ...]:
        """Nothing before the end."""
        return ()

    def finish(self, run_metadata: Any = None) -> Seen:
        """See `Armed.finish`."""
        directory, self._directory = self._directory, None
        if directory is None:
            return Seen((), (0,) * len(self._watch.lanes))
        run = Reading(self._watch.lanes, self._watch.keep_bad, self._watch.value_limit, self._watch.shown)
        try:
            graphs = () if run_metadata is None else run_metadata.partition_graphs
            run.read([self._watch.know(graph) for graph in graphs], dumped_in(directory))
        finally:
            self._watch.give_back(directory)
        return run.seen()
