"""What every layout of a run offers to readers, and how to tell the layouts apart."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tensortap.store.layout import DESCRIPTION, INDEX_SUFFIX, MARKER, TFDBG_PREFIX, parse_run_name
from tensortap.wire.values import TensorValue

__all__ = ["CoreMetadata", "StoredRun", "StoredTensor", "open_run", "time_order"]


class CoreMetadata(NamedTuple):
    """What the runtime said about a run, with tfdbg's field names."""

    global_step: int
    session_run_index: int
    executor_step_index: int
    input_names: list[str]
    output_names: list[str]
    target_nodes: list[str]


class StoredTensor(NamedTuple):
    """One record of a run on disk; `load` reads its value. A tuple, because a run has thousands of them.

    Attributes:
        ordinal: how many earlier records of the same watch key share the timestamp.
        dtype: of the value, empty if only the value itself can tell.
        nbytes: bytes it takes on disk, None if its file is gone.
        inline: the raw value if the index already holds it.
        is_checked: a checksum covers the value.
    """

    device: str
    node_name: str
    output_slot: int
    debug_op: str
    timestamp: int
    ordinal: int
    path: Path
    nbytes: int | None
    load: Callable[[], TensorValue]
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    inline: bytes | None = None
    is_checked: bool = False

    @property
    def extended_timestamp(self) -> str:
        """The timestamp with the suffix that makes it unique within the watch key."""
        return f"{self.timestamp}-{self.ordinal}" if self.ordinal else str(self.timestamp)

    @property
    def tensor_name(self) -> str:
        """The tensor this is a record of."""
        return f"{self.node_name}:{self.output_slot}"


class StoredRun(Protocol):
    """One run on disk, in whichever layout.

    Attributes:
        path: the run directory.
        notices: what is wrong or unusual, in sentences for people.
        damage: those of them about bytes that are not what was written, or are missing.
        devices: names, in a fixed order.
        tensors: the records of each device, in numeric time order.
        core_metadata: one item per metadata file; normally one.
        fetches: printed form of the fetches, one item per run described here.
        feed_keys: printed form of the feed keys, likewise.
        counts: what the writer counted.
        error: what made the run fail, if it did and the layout says so.
        task: rank of the process that wrote the run.
    """

    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def notices(self) -> list[str]: ...  # noqa: D102
    @property
    def damage(self) -> list[str]: ...  # noqa: D102
    @property
    def devices(self) -> list[str]: ...  # noqa: D102
    @property
    def tensors(self) -> dict[str, list[StoredTensor]]: ...  # noqa: D102
    @property
    def core_metadata(self) -> list[CoreMetadata]: ...  # noqa: D102
    @property
    def fetches(self) -> list[str]: ...  # noqa: D102
    @property
    def feed_keys(self) -> list[str]: ...  # noqa: D102
    @property
    def counts(self) -> dict[str, int]: ...  # noqa: D102
    @property
    def error(self) -> str | None: ...  # noqa: D102
    @property
    def task(self) -> int: ...  # noqa: D102

    def refresh(self) -> bool:
        """Read what was added since; whether anything changed."""

    def graph(self, device: str) -> Any | None:
        """The GraphDef of a device, None if there is none."""

    def source_files(self) -> list[str]:
        """Paths of the stored source files."""

    def source_text(self, path: str) -> str:
        """Content of a stored source file; KeyError if it is not stored."""


def time_order(tensor: StoredTensor) -> tuple[int, int]:
    """Sort key of records: numeric, so that suffix 10 comes after 2."""
    return tensor.timestamp, tensor.ordinal


def open_run(run_dir: Path | str, verify: bool = True) -> StoredRun:
    """Open a run directory in the layout it has; `verify` checks values against their checksums when read.

    Raises:
        OSError: there is no such directory.
        DumpFormatError: it is damaged beyond reading, or newer than this reader.
    """
    from tensortap.store.packed import PackedRun
    from tensortap.store.tfdbg import TfdbgRun

    path = Path(run_dir)
    if not path.is_dir():
        raise NotADirectoryError(f"Dump root directory {path} does not exist.")
    return PackedRun(path, verify) if _is_packed(path) else TfdbgRun(path)


def _is_packed(path: Path) -> bool:
    names = os.listdir(path)
    if DESCRIPTION in names or any(name.endswith(INDEX_SUFFIX) for name in names):
        return True
    if parse_run_name(path.name) is None or any(name.startswith(TFDBG_PREFIX) for name in names):
        return False
    # Killed before it was described, it holds nothing but perhaps a temporary file; tfdbg's hold something.
    return (path.parent / MARKER).exists() or all(name.startswith(".") for name in names)
