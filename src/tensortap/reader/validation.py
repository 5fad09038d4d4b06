"""Does what was dumped fit the graph it is said to come from?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tensortap.errors import UsageError
from tensortap.reader.datum import DebugTensorDatum
from tensortap.reader.debug_graph import DebugGraph
from tensortap.records import split_tensor_name

__all__ = ["validate_dump"]

_UNORDERED = ("Enter", "NextIteration")
"""Loop nodes whose consumers do not wait for the debugger."""


def validate_dump(data: Sequence[DebugTensorDatum], graph: DebugGraph) -> None:
    """Check the dumps of one device, in time order, against its graph (E16).

    Raises:
        ValueError: a dumped node is not in the graph, or was dumped before an input it depends on.
    """
    for datum in data:
        if datum.node_name not in graph.inputs:
            raise UsageError(
                f"Node name {datum.node_name!r} is not found in partition graphs of device {graph.device}."
            )
    # By the debug op that says most: values that are kept around a bad one are few, and recorded when it is found.
    counts = Counter(datum.debug_op for datum in data)
    for debug_op, _ in counts.most_common(1):
        _validate_order([datum for datum in data if datum.debug_op == debug_op], graph)


def _validate_order(data: Sequence[DebugTensorDatum], graph: DebugGraph) -> None:
    watched = {(datum.node_name, datum.output_slot) for datum in data}
    pending = _pending_inputs(graph, watched)
    start = 0
    while start < len(data):
        # Dumps of one microsecond have no order among themselves, so they arrive together.
        end = start
        while end < len(data) and data[end].timestamp == data[start].timestamp:
            end += 1
        together = {(datum.node_name, datum.output_slot) for datum in data[start:end]}
        for datum in data[start:end]:
            missing = pending.get(datum.node_name, set()) - together
            if (
                missing
                and graph.op_types[datum.node_name] == "Merge"
                and _one_arrived(datum, together, pending)
            ):
                missing = set()
            if missing:
                inputs = ", ".join(f"{node}:{slot}" for node, slot in sorted(missing))
                raise UsageError(
                    f"Causality violated in timing relations of debug dumps: {datum.node_name} "
                    f"({datum.timestamp}): these input(s) are not satisfied: {inputs}."
                )
        for node, slot in together:
            _arrived(node, slot, graph, pending)
        start = end


def _pending_inputs(graph: DebugGraph, watched: set[tuple[str, int]]) -> dict[str, set[tuple[str, int]]]:
    pending: dict[str, set[tuple[str, int]]] = {}
    for node, names in graph.inputs.items():
        for name in names:
            source, slot = split_tensor_name(name)
            if (source, slot or 0) in watched and graph.op_types.get(source) not in _UNORDERED:
                pending.setdefault(node, set()).add((source, slot or 0))
    return pending


def _arrived(node: str, slot: int, graph: DebugGraph, pending: dict[str, set[tuple[str, int]]]) -> None:
    for recipient in graph.recipients.get(node, ()):
        waiting = pending.get(recipient)
        if waiting and (node, slot) in waiting:
            if graph.op_types.get(recipient) == "Merge":
                waiting.clear()  # a Merge needs only one of its inputs
            else:
                waiting.discard((node, slot))


def _one_arrived(
    datum: DebugTensorDatum, together: set[tuple[str, int]], pending: dict[str, set[tuple[str, int]]]
) -> bool:
    return bool(pending.get(datum.node_name, set()) & together)
