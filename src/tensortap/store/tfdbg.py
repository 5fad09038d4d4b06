"""Reading a run in tfdbg's layout: one file per tensor, each a bare `Event` message."""

from __future__ import annotations

import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

from tensortap.errors import DumpFormatError
from tensortap.store.layout import TFDBG_PREFIX as PREFIX
from tensortap.store.stored_run import CoreMetadata, StoredTensor, time_order
from tensortap.wire.tensor_proto import read_event, tensor_from_event
from tensortap.wire.values import TensorValue

__all__ = [
    "CORE_METADATA",
    "DEVICE",
    "FEED_KEYS",
    "FETCHES",
    "GRAPH",
    "TfdbgRun",
    "device_name_to_device_path",
    "device_path_to_device_name",
    "load_tensor_from_event_file",
    "tensor_at",
]

CORE_METADATA = f"{PREFIX}core_metadata_"
FETCHES = f"{PREFIX}fetches_info_"
FEED_KEYS = f"{PREFIX}feed_keys_info_"
DEVICE = f"{PREFIX}device_"
GRAPH = f"{PREFIX}graph_"

log = logging.getLogger(__name__)


def device_name_to_device_path(device: str) -> str:
    """Directory name of a device (E3).

    >>> device_name_to_device_path("/job:localhost/replica:0/task:0/device:CPU:0")
    '_tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0'
    """
    return DEVICE + device.replace("/", ",").replace(":", "_")


def device_path_to_device_name(path: str) -> str:
    """Name of the device of a directory (E3).

    >>> device_path_to_device_name("_tfdbg_device_,job_localhost,replica_0,task_0,device_CPU_0")
    '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    parts = os.path.basename(path).removeprefix(DEVICE).split(",")
    return "/".join(part.replace("device_", "device:").replace("_", ":", 1) for part in parts)


def load_tensor_from_event_file(path: str | Path) -> TensorValue:
    """The value in one tfdbg dump file."""
    return tensor_from_event(read_event(Path(path)))


def tensor_at(root: Path, relative: Path) -> StoredTensor:
    """What the name of one dump file says (E4).

    Raises:
        ValueError: the name does not follow `<node>_<slot>_<debug op>_<timestamp>` (E14).
    """
    parts = relative.parts
    node, *rest = parts[-1].rsplit("_", 3)
    time, _, suffix = rest[-1].partition("-") if rest else ("", "", "")
    if len(rest) != 3 or not (rest[0].isdecimal() and time.isdecimal() and (suffix or "0").isdecimal()):
        raise ValueError(f"Dump file path does not conform to the naming pattern: {parts[-1]}")
    path = root / relative
    return StoredTensor(
        device_path_to_device_name(parts[0]),
        "/".join([*parts[1:-1], node]),
        int(rest[0]),
        rest[1],
        int(time),
        int(suffix or 0),
        path,
        path.stat().st_size if path.exists() else None,
        partial(load_tensor_from_event_file, path),
    )


class TfdbgRun:
    """A directory that TensorFlow's debugger wrote, or our export; see `StoredRun` for its members."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notices: list[str] = []
        self.damage: list[str] = []
        self.counts: dict[str, int] = {}
        self.error: str | None = None
        self._state: tuple[Any, ...] = ()
        self.refresh()

    def refresh(self) -> bool:
        """Read the directory again; whether anything changed."""
        self.notices = []
        self.tensors: dict[str, list[StoredTensor]] = {}
        self._graphs: dict[str, Path] = {}
        self.core_metadata = [_core_metadata(path) for path in self._files(CORE_METADATA)]
        self.fetches = [read_event(path).log_message.message for path in self._files(FETCHES)]
        self.feed_keys = [read_event(path).log_message.message for path in self._files(FEED_KEYS)]
        for folder in sorted(self.path.glob(f"{DEVICE}*")):
            if folder.is_dir() and not folder.is_symlink():
                self._load_device(folder)
        self.devices = list(self.tensors)
        before = self._state
        counts = tuple((device, len(data)) for device, data in self.tensors.items())
        self._state = (counts, tuple(self._graphs.items()), len(self.core_metadata))
        return before != self._state

    @property
    def task(self) -> int:
        """Rank of the process, as the first device name says."""
        for device in self.devices:
            for part in device.split("/"):
                if part.startswith("task:") and part[5:].isdecimal():
                    return int(part[5:])
        return 0

    def graph(self, device: str) -> Any | None:
        """The GraphDef of a device, None if it has no graph file."""
        path = self._graphs.get(device)
        if path is None:
            return None
        from tensortap.wire.messages import DecodeError, GraphDef

        try:
            return GraphDef.FromString(read_event(path).graph_def)
        except DecodeError as error:
            raise DumpFormatError(f"{path}: holds no graph: {error}.") from error

    def source_files(self) -> list[str]:
        """None: the layout has no place for source files."""
        return []

    def source_text(self, path: str) -> str:
        """Raises KeyError: the layout has no place for source files."""
        raise KeyError(path)

    def _files(self, prefix: str) -> list[Path]:
        return [path for path in sorted(self.path.glob(f"{prefix}*")) if self._usable(path)]

    def _usable(self, path: Path) -> bool:
        if path.is_symlink():
            # A link could lead out of the directory; TensorFlow never writes one.
            self.notices.append(f"The link {path.name} was not followed.")
            return False
        return path.is_file()

    def _load_device(self, folder: Path) -> None:
        device = device_path_to_device_name(folder.name)
        data = []
        for place, _, names in os.walk(folder):
            for name in sorted(names):
                path = Path(place, name)
                if not self._usable(path):
                    continue
                if name.startswith(GRAPH):
                    newest = self._graphs.get(device)
                    if newest is None or _graph_time(newest) <= _graph_time(path):
                        self._graphs[device] = path
                else:
                    data.append(tensor_at(self.path, path.relative_to(self.path)))
        data.sort(key=time_order)
        self.tensors[device] = data


def _graph_time(path: Path) -> int:
    time = path.name.rpartition("_")[2].partition("-")[0]
    return int(time) if time.isdecimal() else 0


def _core_metadata(path: Path) -> CoreMetadata:
    message = read_event(path).log_message.message
    try:
        facts = json.loads(message)
        return CoreMetadata(*(facts[name] for name in CoreMetadata._fields))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DumpFormatError(f"{path}: not the metadata of a run: {error!r}.") from error
