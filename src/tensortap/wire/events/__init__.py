"""What a stream is made of: `Event` messages that carry metadata, graphs and tensors.

    metadata_event(info, …)         bytes of the event that says which run a stream is about
    graph_events(graph, …)          bytes of the events that carry a GraphDef, in chunks
    tensor_events(record)           bytes of the events that carry a record, in chunks
    run_end_event(…)                bytes of our own event that says how a run ended
    kind_of(event)                  which of these an Event is
    read_metadata, read_run_end     what such an event says
    GraphJoiner, TensorJoiner       put chunks together again; `add(event)` gives the whole once it is there

Everything that reads trusts nothing: what is not as it should be raises `WireError`, and what waits for its
missing chunks is bounded.
"""

from __future__ import annotations

from typing import Any

from tensortap.wire.events.ending import RUN_END_PLUGIN, RunEnding, read_run_end, run_end_event
from tensortap.wire.events.fields import MAX_NAME_BYTES
from tensortap.wire.events.graphs import GraphJoiner, ReceivedGraph, graph_events
from tensortap.wire.events.metadata import StreamMetadata, metadata_event, read_metadata
from tensortap.wire.events.own import own_event
from tensortap.wire.events.tensors import TensorJoiner, tensor_events

__all__ = [
    "BATCH",
    "BATCH_PLUGIN",
    "GRAPH",
    "MAX_NAME_BYTES",
    "METADATA",
    "OTHER",
    "RUN_END",
    "TENSOR",
    "GraphJoiner",
    "ReceivedGraph",
    "RunEnding",
    "StreamMetadata",
    "TensorJoiner",
    "graph_events",
    "kind_of",
    "metadata_event",
    "own_event",
    "read_metadata",
    "read_run_end",
    "run_end_event",
    "tensor_events",
]

METADATA, GRAPH, TENSOR, BATCH, RUN_END, OTHER = "metadata", "graph", "tensor", "batch", "run end", "other"
BATCH_PLUGIN = "tensortap.batch"


def kind_of(event: Any) -> str:
    """Which kind of event this is: `METADATA`, `GRAPH`, `TENSOR`, `BATCH`, `RUN_END` or `OTHER`."""
    if event.HasField("summary") and event.summary.value:
        plugin = event.summary.value[0].metadata.plugin_data.plugin_name
        return {BATCH_PLUGIN: BATCH, RUN_END_PLUGIN: RUN_END}.get(plugin, TENSOR)
    if event.graph_def:
        return GRAPH
    return METADATA if event.log_message.message else OTHER
