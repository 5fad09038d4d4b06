"""The graphs that one stream brings or names, until they are stored with its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensortap.server.job import Job
from tensortap.server.limits import checked_name
from tensortap.server.received_run import ReceivedRun
from tensortap.server.reception import Reception
from tensortap.wire.debug_service import GraphDef, WireError
from tensortap.wire.events import ReceivedGraph, StreamMetadata
from tensortap.wire.messages import DecodeError

__all__ = ["StreamGraphs"]


class StreamGraphs:
    """Graphs come before the run has a directory, after it, or not at all, if an earlier run has brought them (F6)."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._unstored: list[ReceivedGraph] = []
        self._devices: dict[str, None] = {}

    @property
    def first_device(self) -> str:
        """The device of the first graph; empty if none has come."""
        return next(iter(self._devices), "")

    def add(self, graph: ReceivedGraph) -> Any:
        """Take a graph; its message.

        Raises:
            WireError: it is none.
        """
        message = _parsed(graph)
        self._devices[graph.device] = None
        self._unstored.append(graph)
        return message

    def check_waiting(self) -> None:
        """Before there is a run to store them with, graphs wait in memory.

        Raises:
            WireError: there are too many.
        """
        if sum(len(each.content) for each in self._unstored) > self._reception.limits.value_bytes:
            raise WireError("The stream brings more graphs than the server takes before a run begins.")

    def store(self, run: ReceivedRun, job: Job, metadata: StreamMetadata | None) -> None:
        """Store the graphs received so far, or refer to those that an earlier run of the executor brought."""
        graphs, self._unstored = self._unstored, []
        executor = self._executor(metadata)
        try:
            digests = {graph.device: self._reception.graphs.put(graph.content, job.store) for graph in graphs}
            if digests:
                job.remember_graphs(executor, digests)
            digests = digests or job.graphs_of(executor)
            sources = self._reception.programs.sources_for(job.store)
        except OSError as error:
            run.failed(error)
            return
        if digests or sources:
            run.refer(digests, sources)

    def refer(self, run: ReceivedRun, job: Job, graphs: Mapping[str, str]) -> None:
        """Give the run the graphs that its client names by their digests, because the server has them."""
        index = self._reception.graphs
        known = {device: index.find(digest, job.store) for device, digest in graphs.items()}
        found = {
            checked_name(device, "device"): digest for device, digest in known.items() if digest is not None
        }
        if found:
            run.refer(found)

    def _executor(self, metadata: StreamMetadata | None) -> object:
        """What runs with the same graphs have in common."""
        if metadata is None:
            return tuple(self._devices)
        info = metadata.info
        return info.task, info.input_names, info.output_names, info.target_nodes


def _parsed(graph: ReceivedGraph) -> Any:
    try:
        message = GraphDef.FromString(graph.content)
    except DecodeError as error:
        raise WireError(f"The graph of {graph.device} is no GraphDef: {error}.") from error
    for node in message.node:
        checked_name(node.name)
    return message
