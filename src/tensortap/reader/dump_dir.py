"""`DebugDumpDir`: everything one run dumped, and the graph it came from, whichever layout it has."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from tensortap.errors import DamagedValueError, UsageError
from tensortap.reader.datum import DebugTensorDatum
from tensortap.reader.graph_queries import GraphQueries
from tensortap.reader.validation import validate_dump
from tensortap.store.stored_run import CoreMetadata, StoredRun, open_run
from tensortap.wire.values import TensorValue

__all__ = ["DebugDumpDir", "WatchKeyDoesNotExistInDebugDumpDirError"]

log = logging.getLogger(__name__)

_Item = TypeVar("_Item")
Predicate = Callable[[DebugTensorDatum, Any], Any]


class WatchKeyDoesNotExistInDebugDumpDirError(UsageError):
    """Nothing was dumped under this watch key."""


class DebugDumpDir(GraphQueries):
    """The dump of one run: tensors by time, name and predicate, and the structure of the graph.

    Values are read when they are asked for; those of a packed run are memory-mapped, so a tensor larger than
    memory can be sliced.

    Args:
        root: a run directory, in the packed or in tfdbg's layout.
        partition_graphs: GraphDefs to fall back to for devices whose graph is not on disk.
        validate: check the dumps against the graphs.
        verify: check each value against its checksum when it is read for the first time, which reads all of it;
            False leaves the parts of a mapped value that nobody looks at on the disk.

    Raises:
        OSError: there is no such directory.
        ValueError: the directory is damaged beyond reading, or the dumps contradict the graphs.

    >>> import tempfile
    >>> from tensortap.records import Record, RunInfo
    >>> from tensortap.store import SessionStore
    >>> with SessionStore(tempfile.mkdtemp()) as store, store.new_run(RunInfo(0, 3, 17)) as run:
    ...     _ = run.write(Record("fc", 0, "DebugNanCount", "/device:CPU:0", 18, "int64", (1,), bytes(8)))
    >>> dump = DebugDumpDir(run.path)
    >>> dump.dumped_tensor_data
    [{DebugTensorDatum (/device:CPU:0) fc:0 @ DebugNanCount @ 18}]
    >>> dump.notices
    ['The run has not finished: it is still being written, or its process died.']
    """

    def __init__(
        self,
        root: str | Path,
        partition_graphs: Iterable[Any] | None = None,
        validate: bool = True,
        *,
        verify: bool = True,
    ) -> None:
        super().__init__()
        self.source: StoredRun = open_run(root, verify)
        self._client_graphs = list(partition_graphs or ())
        self._validate = validate
        self._load()

    def refresh(self) -> bool:
        """Take in what was written since; whether anything changed."""
        changed = self.source.refresh()
        if changed:
            self._load()
        return changed

    def _load(self) -> None:
        self._data = {
            device: [DebugTensorDatum(each) for each in tensors]
            for device, tensors in self.source.tensors.items()
        }
        self._by_key: dict[str, dict[str, list[DebugTensorDatum]]] = {}
        for device, data in self._data.items():
            keys = self._by_key[device] = {}
            for datum in data:
                keys.setdefault(datum.watch_key, []).append(datum)
        first = [data[0].timestamp for data in self._data.values() if data]
        self._t0 = min(first) if first else None
        self._forget_graphs()
        if self._validate:
            for device, graph in self._graphs.items():
                validate_dump(self._data.get(device, ()), graph)

    def _find_graph(self, device: str) -> Any | None:
        graph = self.source.graph(device)
        if graph is not None:
            return graph
        for candidate in self._client_graphs:
            if any(node.device == device for node in candidate.node):
                log.warning(
                    "The graph of device %s is not in %s; using the one the caller supplied, whose device "
                    "names may differ.",
                    device,
                    self.source.path,
                )
                return candidate
        return None

    # --- the run -----------------------------------------------------------------------------------

    @property
    def dump_root(self) -> Path:
        """The run directory."""
        return self.source.path

    @property
    def notices(self) -> list[str]:
        """What is wrong or unusual about the directory, in sentences; empty for a complete run."""
        return list(self.source.notices)

    @property
    def counts(self) -> dict[str, int]:
        """What the writer counted, such as dropped records."""
        return dict(self.source.counts)

    @property
    def error(self) -> str | None:
        """What made the run fail, if it did and the layout says so."""
        return self.source.error

    @property
    def core_metadata(self) -> CoreMetadata | list[CoreMetadata]:
        """Step, number and arguments of the run; a list if there are none or several descriptions."""
        return _single(self.source.core_metadata)

    @property
    def run_fetches_info(self) -> str | list[str]:
        """Printed form of the fetches; a list if there are none or several."""
        return _single(self.source.fetches)

    @property
    def run_feed_keys_info(self) -> str | list[str]:
        """Printed form of the feed keys; a list if there are none or several."""
        return _single(self.source.feed_keys)

    def devices(self) -> list[str]:
        """Names of the devices that dumped."""
        return list(self.source.devices)

    @property
    def size(self) -> int:
        """Number of dumped tensors."""
        return sum(map(len, self._data.values()))

    @property
    def t0(self) -> int | None:
        """Timestamp of the first dumped tensor in microseconds, None if there is none."""
        return self._t0

    @property
    def dumped_tensor_data(self) -> list[DebugTensorDatum]:
        """All dumped tensors in time order, across devices."""
        if len(self._data) == 1:
            return list(next(iter(self._data.values())))
        everything = [datum for data in self._data.values() for datum in data]
        return sorted(everything, key=lambda datum: (datum.timestamp, datum.stored.ordinal))

    # --- tensors -----------------------------------------------------------------------------------

    def debug_watch_keys(self, node_name: str, device_name: str | None = None) -> list[str]:
        """All watch keys under which a node was dumped; empty for an unknown or ambiguous node."""
        try:
            device = self._device_of(node_name, device_name)
        except ValueError:
            return []
        keys = self._by_key.get(device, {})
        return [key for key, data in keys.items() if data[0].node_name == node_name]

    def watch_key_to_data(
        self, debug_watch_key: str, device_name: str | None = None
    ) -> list[DebugTensorDatum]:
        """The dumps of one watch key in time order.

        Raises:
            ValueError: several devices have the key and none was named, or the named one does not exist.
        """
        if device_name is None:
            having = [device for device, keys in self._by_key.items() if debug_watch_key in keys]
            if len(having) > 1:
                raise UsageError(
                    f"The debug watch key {debug_watch_key!r} exists on {len(having)} devices; name one of "
                    f"{', '.join(having)}."
                )
            if not having:
                return []
            device_name = having[0]
        elif device_name not in self._by_key:
            raise UsageError(f"There is no device named {device_name!r} with dumped tensors.")
        return list(self._by_key[device_name].get(debug_watch_key, ()))

    def find(
        self,
        predicate: Predicate,
        first_n: int = 0,
        device_name: str | None = None,
        exclude_node_names: str | None = None,
    ) -> list[DebugTensorDatum]:
        """The dumped tensors for which `predicate(datum, value)` holds, in time order.

        Args:
            predicate: called with every datum and its value.
            first_n: stop after so many; 0 or less means all.
            device_name: look at one device only.
            exclude_node_names: regular expression matched at the start of a node name.

        Values that have changed on the disk are left out, and named in `notices`.
        """
        excluded = re.compile(exclude_node_names) if exclude_node_names else None
        if device_name is not None and device_name not in self._data:
            raise UsageError(f"There is no device named {device_name!r} with dumped tensors.")
        found = []
        for datum in self.dumped_tensor_data if device_name is None else self._data[device_name]:
            if excluded is not None and excluded.match(datum.node_name):
                continue
            try:
                value = datum.get_tensor()
            except DamagedValueError as error:
                log.warning("Left out: %s", error)
                continue
            if predicate(datum, value):
                found.append(datum)
                if 0 < first_n <= len(found):
                    break
        return found

    def get_tensors(
        self, node_name: str, output_slot: int, debug_op: str, device_name: str | None = None
    ) -> list[TensorValue]:
        """The values dumped under a watch key, one per execution of the node."""
        return [datum.get_tensor() for datum in self._dumps(node_name, output_slot, debug_op, device_name)]

    def get_tensor_file_paths(
        self, node_name: str, output_slot: int, debug_op: str, device_name: str | None = None
    ) -> list[str]:
        """The files that hold those values."""
        return [datum.file_path for datum in self._dumps(node_name, output_slot, debug_op, device_name)]

    def get_rel_timestamps(
        self, node_name: str, output_slot: int, debug_op: str, device_name: str | None = None
    ) -> list[int]:
        """Microseconds from the first dump of the run to each of them."""
        t0 = self._t0 or 0
        return [datum.timestamp - t0 for datum in self._dumps(node_name, output_slot, debug_op, device_name)]

    def get_dump_sizes_bytes(
        self, node_name: str, output_slot: int, debug_op: str, device_name: str | None = None
    ) -> list[int | None]:
        """Bytes each of them takes on disk."""
        return [datum.dump_size_bytes for datum in self._dumps(node_name, output_slot, debug_op, device_name)]

    def _dumps(self, node: str, slot: int, debug_op: str, device: str | None) -> list[DebugTensorDatum]:
        key = f"{node}:{slot}:{debug_op}"
        try:
            found = self._by_key.get(self._device_of(node, device), {}).get(key)
        except ValueError as error:
            if "multiple" in str(error):
                raise WatchKeyDoesNotExistInDebugDumpDirError(f"{error} Watch key: {key!r}.") from error
            found = None
        if not found:
            where = f" of device {device}" if device else ""
            raise WatchKeyDoesNotExistInDebugDumpDirError(
                f"Watch key {key!r} does not exist in the debug dump{where}."
            )
        return found

    def _device_of(self, node_name: str, device_name: str | None) -> str:
        if device_name is None and not self._graphs:
            # Without graphs the dumps themselves say where a node was.
            having = [
                d for d, data in self._data.items() if any(each.node_name == node_name for each in data)
            ]
            if len(having) == 1:
                return having[0]
            if having:
                raise UsageError(
                    f"There are multiple ({len(having)}) devices with nodes named {node_name!r}."
                )
        return super()._device_of(node_name, device_name)


def _single(items: list[_Item]) -> _Item | list[_Item]:
    return items[0] if len(items) == 1 else list(items)
