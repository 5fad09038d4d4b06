"""The facts of a run on disk: what was recorded of its tensors, its graph, its source lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tensortap.analyze.execution import Execution
from tensortap.analyze.graph_nodes import GraphNodes, node_of_proto
from tensortap.analyze.health import Health
from tensortap.analyze.run_facts import RunFacts
from tensortap.errors import DamagedValueError
from tensortap.phases import module_of, phase_of
from tensortap.pill import HASH_OP, NAN_COUNT_OP, PILL_BYTES, PILL_OP
from tensortap.records import Frame, Node, RunInfo, split_tensor_name
from tensortap.store.layout import parse_run_name

if TYPE_CHECKING:
    from tensortap.reader import DebugDumpDir

__all__ = ["RunFacts", "facts_of_dump", "module_of", "node_of_proto", "phase_of"]

_PILL, _NANS, _VALUE, _HASH = PILL_OP, NAN_COUNT_OP, "DebugIdentity", HASH_OP
_PLACES = "DebugIndices"


def facts_of_dump(
    dump: DebugDumpDir, graphs: MutableMapping[Any, Mapping[str, Node]] | None = None
) -> RunFacts:
    """The facts of a run on disk.

    Args:
        dump: the run.
        graphs: of other runs; the same one is not read twice.
    """
    healths: dict[str, Health | Callable[[], Health | None]] = {}
    times: dict[str, int] = {}
    values: dict[str, list[Callable[[], Any]]] = {}
    value_times: dict[str, int] = {}
    hashes: dict[str, Callable[[], Any]] = {}
    places: dict[str, Callable[[], Any]] = {}
    executions: dict[str, list[Execution]] = {}
    kept: dict[str, list[Execution]] = {}
    data = [datum.stored for datum in dump.dumped_tensor_data]
    notices = dump.notices

    def intact(load: Callable[[], Any]) -> Any:
        try:
            return load()
        except DamagedValueError as error:
            if str(error) not in notices:
                notices.append(str(error))
            return None

    for stored in data:
        tensor = stored.tensor_name
        times.setdefault(tensor, stored.timestamp)
        if stored.debug_op == _PILL and stored.inline is not None and len(stored.inline) >= PILL_BYTES:
            known = healths.get(tensor)
            pill = Health.of_pill(stored.inline)
            executions.setdefault(tensor, []).append(Execution(stored.timestamp, pill))
            # Of several executions the first bad one tells most, else the last.
            if not isinstance(known, Health) or not known.is_bad:
                healths[tensor] = pill
        elif stored.debug_op == _VALUE:
            values.setdefault(tensor, []).append(partial(intact, stored.load))
            value_times[tensor] = stored.timestamp
            load = values[tensor][-1]
            kept.setdefault(tensor, []).append(
                Execution(stored.timestamp, partial(_health_of, [load]), partial(_array, load))
            )
            healths.setdefault(tensor, partial(_health_of, values[tensor]))
        elif stored.debug_op == _HASH:
            hashes[tensor] = partial(intact, stored.load)
        elif stored.debug_op == _PLACES:
            places[tensor] = partial(intact, stored.load)
        elif stored.debug_op in (_NANS, _PILL):
            healths.setdefault(tensor, partial(_small_health, partial(intact, stored.load), stored.debug_op))

    def value(tensor: str) -> Any:
        loads = values.get(tensor)
        return _array(loads[-1]) if loads else None

    def hash_of(tensor: str) -> Any:
        load = hashes.get(tensor)
        found = None if load is None else load()
        return found.tolist() if isinstance(found, np.ndarray) else None

    def places_of(tensor: str) -> Any:
        load = places.get(tensor)
        found = None if load is None else load()
        return found if isinstance(found, np.ndarray) and found.ndim == 2 else None

    key = getattr(dump.source, "graph_digests", None)
    nodes = None if graphs is None or not key else graphs.get(key)
    if nodes is None:
        nodes = _nodes_of(dump)
        if graphs is not None and key:
            graphs[key] = nodes
    if any(len(each) > 1 for each in executions.values()):
        # What carries values around a loop was kept for one of its rounds: that says nothing of all others.
        for tensor in kept.keys() - executions.keys():
            node = nodes.get(split_tensor_name(tensor)[0])
            if node is not None and node.is_view:
                del healths[tensor], times[tensor]
    facts = RunFacts(
        _info_of(dump),
        nodes,
        healths,
        times=times,
        values=value,
        value_times=value_times,
        places=places_of,
        hashes=hash_of,
        source_lines=_SourceLines(dump),
        executions={
            tensor: each
            for tensor in executions | kept
            if len(each := _joined(executions.get(tensor, []), kept.get(tensor, []))) > 1
        },
        is_muted=bool(dump.counts.get("muted")),
        name=dump.dump_root.name,
        notices=notices,
    )
    facts.circumstances = getattr(dump.source, "circumstances", facts.circumstances)
    return facts


def _joined(summarised: list[Execution], kept: list[Execution]) -> list[Execution]:
    """All executions of a tensor: those whose values were kept, which may be few, among those that were summarised."""
    if len(kept) >= len(summarised):
        return kept
    for each in kept:
        before = [other for other in summarised if other.time <= each.time]
        if before:
            before[-1].value = each.value
    return summarised


def _array(load: Callable[[], Any]) -> Any:
    found = load()
    return found if isinstance(found, np.ndarray) else None


def _health_of(loads: list[Callable[[], Any]]) -> Health | None:
    found = None
    for load in loads:
        found = Health.of_value(load())
        if found is not None and found.is_bad:
            break
    return found


def _small_health(load: Callable[[], Any], debug_op: str) -> Health | None:
    value = load()
    if not isinstance(value, np.ndarray) or not value.size:
        return None
    if debug_op == _NANS:
        return Health.of_nan_count(int(value.reshape(-1)[0]))
    return Health.of_pill(value.astype(np.float64).tobytes()) if value.nbytes >= PILL_BYTES else None


def _info_of(dump: DebugDumpDir) -> RunInfo:
    known: RunInfo | None = getattr(dump.source, "info", None)
    if known is not None:
        return known
    # TensorFlow's own number counts runs that were not debugged, too; commands know a run by that of its directory.
    metadata = dump.source.core_metadata
    named = parse_run_name(dump.dump_root.name)
    index = named[1] if named else metadata[0].session_run_index if metadata else 0
    step = metadata[0].global_step if metadata else -1
    fetched = tuple(metadata[0].output_names) if metadata else ()
    return RunInfo(index, step, dump.t0 or 0, dump.source.task, output_names=fetched)


def _nodes_of(dump: DebugDumpDir) -> Mapping[str, Node]:
    # Straight from the source: the reader's own form of a graph answers more questions, and takes longer to make.
    graphs = [graph for graph in map(dump.source.graph, dump.source.devices) if graph is not None]
    if any(message.name.startswith("__copy_") for graph in graphs for message in graph.node):
        graphs = list(dump.reconstructed_non_debug_partition_graphs().values())
    return GraphNodes({message.name: message for graph in graphs for message in graph.node})


class _SourceLines:
    """Lines of the stored source files."""

    def __init__(self, dump: DebugDumpDir) -> None:
        self._dump = dump
        self._files: dict[str, list[str]] = {}

    def __call__(self, frame: Frame) -> str | None:
        lines = self._files.get(frame.file)
        if lines is None:
            try:
                lines = self._dump.source_text(frame.file).splitlines()
            except (KeyError, OSError, ValueError):
                lines = []
            self._files[frame.file] = lines
        return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else None
