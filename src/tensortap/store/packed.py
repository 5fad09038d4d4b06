"""Reading a run in the packed layout, finished or still growing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensortap.errors import DumpFormatError
from tensortap.records import Circumstances, RunInfo
from tensortap.store.content import ContentStore
from tensortap.store.description import RUNNING, RunDescription, read_description
from tensortap.store.device_reader import DeviceReader
from tensortap.store.layout import DESCRIPTION, INDEX_SUFFIX, parse_run_name
from tensortap.store.stored_run import CoreMetadata, StoredTensor

__all__ = ["PackedRun"]


class PackedRun:
    """A run directory with `run.json`, `*.index` and `*.data` files; see `StoredRun` for its members.

    Damage never hides what is intact: unreadable parts become notices. Only a description of a newer version
    makes opening fail.
    """

    def __init__(self, path: Path, verify: bool = True) -> None:
        self.path = path
        self._verify = verify
        self._notices: list[str] = []
        self._unreadable: list[str] = []
        self.devices: list[str] = []
        self.tensors: dict[str, list[StoredTensor]] = {}
        self._files: dict[str, DeviceReader] = {}
        self._content = ContentStore(path.parent)
        self._state: tuple[Any, ...] = ()
        self.refresh()

    def refresh(self) -> bool:
        """Read what was added since; whether anything changed."""
        before = self._state
        self._unreadable = []
        notices = self._read_description()
        for index in sorted(self.path.glob(f"*{INDEX_SUFFIX}")):
            if index.name in self._files:
                continue
            try:
                reader = DeviceReader(index, self._verify)
            except (DumpFormatError, OSError) as error:
                self._unreadable.append(f"The index {index.name} cannot be read: {error}")
                continue
            if reader.device in self.tensors:
                notices.append(f"The index {index.name} repeats device {reader.device} and is ignored.")
                continue
            self._files[index.name] = reader
            self.tensors[reader.device] = reader.tensors
        for reader in self._files.values():
            reader.refresh()
        self.devices = sorted(self.tensors)
        self._notices = notices
        self._state = (self._description, *(reader.position for reader in self._files.values()))
        return before != self._state

    @property
    def notices(self) -> list[str]:
        """What is wrong or unusual, in sentences; also what was found when values were read."""
        found = (each for reader in self._files.values() for each in reader.notices)
        return [*self._notices, *self._unreadable, *found]

    @property
    def damage(self) -> list[str]:
        """What is not as it was written, or cannot be read."""
        return [*self._unreadable, *(each for reader in self._files.values() for each in reader.damage)]

    @property
    def info(self) -> RunInfo:
        """Number, step and arguments of the run."""
        return self._description.info

    @property
    def status(self) -> str:
        """`running`, `finished` or `failed`."""
        return self._description.status

    @property
    def core_metadata(self) -> list[CoreMetadata]:
        """What the runtime said about the run; packed runs have no executor of their own."""
        info = self.info
        names = list(info.input_names), list(info.output_names), list(info.target_nodes)
        return [CoreMetadata(info.global_step, info.index, info.index, *names)]

    @property
    def fetches(self) -> list[str]:
        """Printed form of the fetches."""
        return [self.info.fetches]

    @property
    def feed_keys(self) -> list[str]:
        """Printed form of the feed keys."""
        return [self.info.feed_keys]

    @property
    def counts(self) -> dict[str, int]:
        """What the writer counted."""
        return dict(self._description.counts)

    @property
    def circumstances(self) -> Circumstances:
        """What the engine knew of the run besides."""
        return self._description.circumstances

    @property
    def error(self) -> str | None:
        """What made the run fail."""
        return self._description.error

    @property
    def task(self) -> int:
        """Rank of the process that wrote the run."""
        return self.info.task

    def graph(self, device: str) -> Any | None:
        """The GraphDef of a device, None if the run stored none or it is damaged."""
        digest = self._description.graphs.get(device)
        if digest is None:
            return None
        from tensortap.wire.messages import DecodeError, GraphDef

        try:
            return GraphDef.FromString(self._content.get("graphs", digest))
        except (DumpFormatError, DecodeError) as error:
            self._unreadable.append(f"The graph of {device} cannot be read: {error}")
            return None

    @property
    def graph_digests(self) -> tuple[tuple[str, str], ...]:
        """The devices that have a graph, each with what is the same for the same graph."""
        return tuple(sorted(self._description.graphs.items()))

    def graph_devices(self) -> list[str]:
        """Devices that have a graph, with or without records."""
        return sorted(self._description.graphs)

    def source_files(self) -> list[str]:
        """Paths of the stored source files."""
        return sorted(self._description.sources)

    def source_text(self, path: str) -> str:
        """Content of a stored source file; KeyError if it is not stored."""
        return self._content.get("sources", self._description.sources[path]).decode("utf-8", "replace")

    def _read_description(self) -> list[str]:
        try:
            self._description = read_description(self.path)
        except FileNotFoundError:
            return [self._without_description("is missing")]
        except (DumpFormatError, OSError) as error:
            if isinstance(error, DumpFormatError) and "newer" in str(error):
                raise
            self._unreadable.append(self._without_description(f"cannot be read ({error})"))
            return []
        notices = [*self._description.notes]
        if self._description.status == RUNNING:
            notices.append("The run has not finished: it is still being written, or its process died.")
        dropped = {key: n for key, n in self._description.counts.items() if "drop" in key and n}
        if dropped:
            said = ", ".join(f"{key} {count}" for key, count in sorted(dropped.items()))
            notices.append(f"The writer left records out: {said}.")
        return notices

    def _without_description(self, problem: str) -> str:
        timestamp, index = parse_run_name(self.path.name) or (0, 0)
        self._description = RunDescription(RunInfo(index, -1, timestamp))
        if problem == "is missing" and not any(self.path.glob(f"*{INDEX_SUFFIX}")):
            return "The run holds nothing yet: its process was stopped in its first moments, or has just begun it."
        return f"The description {DESCRIPTION} {problem}; step, fetches and graphs of the run are unknown."
