"""The two files of one device of one run, as their reader sees them."""

from __future__ import annotations

import mmap
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from tensortap.errors import DamagedValueError, DumpFormatError
from tensortap.store.checksum import ALGORITHMS
from tensortap.store.format import Damage, IndexEntry, decode_header, scan_entries
from tensortap.store.layout import DATA_SUFFIX
from tensortap.store.stored_run import StoredTensor, time_order
from tensortap.wire.values import (
    InconvertibleTensorProto,
    TensorValue,
    element_count,
    numpy_dtype,
    to_array,
)

__all__ = ["DeviceReader"]

HEAD_BYTES = 1 << 20
"""The header of an index, which names a device, is far smaller."""

CHUNK_BYTES = 32 << 20
"""Of an index that are in memory at a time; a frame has at most 1 MiB."""


class DeviceReader:
    """Follows one index file and maps its data file.

    Args:
        index: the index file.
        verify: check a value against its checksum when it is read for the first time.

    Attributes:
        device: full name of the device.
        tensors: the records read so far, in numeric time order.
        position: how far the index was read; everything before is complete.
    """

    def __init__(self, index: Path, verify: bool = True) -> None:
        self._index = index
        self._data = index.with_suffix(DATA_SUFFIX)
        self._map: mmap.mmap | None = None
        self._ordinals: dict[tuple[str, int, str, int], int] = {}
        self._verified: set[int] = set()
        self._damaged_values: dict[int, str] = {}
        self._damaged = self._unusable = self._torn = self._unread = 0
        self.tensors: list[StoredTensor] = []
        head = _read_from(index, 0, HEAD_BYTES)
        facts, self.position = decode_header(head, index.name)
        device = facts.get("device")
        if not isinstance(device, str):
            raise DumpFormatError(f"{index.name}: the header names no device.")
        self.device = device
        # An algorithm of a later version is no reason not to read.
        self._checksum = ALGORITHMS.get(str(facts.get("checksum"))) if verify else None

    @property
    def notices(self) -> list[str]:
        """What is damaged or incomplete, in sentences."""
        if not self._torn:
            return self.damage
        torn = (
            f"{self._index.name}: the last {self._torn} bytes are an incomplete entry: its writer was "
            "stopped, or is still writing. Everything before is intact."
        )
        return [torn, *self.damage]

    @property
    def damage(self) -> list[str]:
        """What is not as it was written, in sentences."""
        said = []
        if self._damaged:
            said.append(
                f"{self._index.name}: {self._damaged} bytes of the index are damaged and were skipped."
            )
        if self._unread:
            said.append(
                f"{self._index.name}: its last {self._unread} bytes were not read: there is no record in the first "
                f"{CHUNK_BYTES >> 20} MB of them."
            )
        if self._unusable:
            said.append(
                f"{self._index.name}: {self._unusable} record(s) were left out: their value is missing or "
                "has an impossible size."
            )
        if self._damaged_values:
            first, more = next(iter(self._damaged_values.values())), len(self._damaged_values) - 1
            others = f" and {more} more" if more else ""
            said.append(
                f"{self._data.name}: the bytes of {first}{others} have changed since they were written."
            )
        return said

    def refresh(self) -> None:
        """Read the entries added since."""
        self._torn = self._unread = 0
        data_size = _size(self._data)
        found: list[StoredTensor] = []
        while True:
            start = self.position
            buffer = _read_from(self._index, start, CHUNK_BYTES)
            self._scan(buffer, data_size, found)
            if len(buffer) < CHUNK_BYTES:
                break
            if self.position == start:
                # Frames are far smaller: nothing in all of this is one.
                self._torn, self._unread = 0, _size(self._index) - start
                break
        if found:
            self.tensors += found
            self.tensors.sort(key=time_order)

    def _scan(self, buffer: bytes, data_size: int, found: list[StoredTensor]) -> None:
        """Take in a piece of the index that begins at `position`, which moves on over what is complete."""
        start = self.position
        self._torn = 0
        for item in scan_entries(buffer):
            if isinstance(item, Damage):
                if item.at_end:
                    self._torn = item.nbytes
                    break
                self._damaged += item.nbytes
                continue
            entry, _ = item
            tensor = self._stored(entry, data_size)
            if tensor is None:
                self._unusable += 1
            else:
                found.append(tensor)
        self.position = start + len(buffer) - self._torn

    def _stored(self, entry: IndexEntry, data_size: int) -> StoredTensor | None:
        if not _plausible(entry, data_size):
            return None
        name = re.sub("/+", "/", entry.node_name) if "//" in entry.node_name else entry.node_name
        key = (name, entry.output_slot, entry.debug_op, entry.timestamp)
        ordinal = self._ordinals.get(key, 0)
        self._ordinals[key] = ordinal + 1
        return StoredTensor(
            self.device,
            name,
            entry.output_slot,
            entry.debug_op,
            entry.timestamp,
            ordinal,
            self._index if entry.inline is not None or not entry.has_value else self._data,
            entry.nbytes,
            partial(self._load, entry),
            entry.dtype,
            entry.shape,
            entry.inline,
            entry.inline is not None or entry.checksum is not None or not entry.has_value,
        )

    def _load(self, entry: IndexEntry) -> TensorValue:
        if not entry.has_value:
            described = f"{entry.dtype}{list(entry.shape)}"
            return InconvertibleTensorProto(described, initialized=entry.initialized)
        if entry.inline is not None:
            return to_array(entry.inline, entry.dtype, entry.shape, 0, entry.nbytes)
        mapped = self._mapped(entry.offset + entry.nbytes)
        self._verify(entry, mapped)
        return to_array(mapped, entry.dtype, entry.shape, entry.offset, entry.nbytes)

    def _verify(self, entry: IndexEntry, mapped: mmap.mmap) -> None:
        """Compare a value with its checksum, once."""
        if self._checksum is None or entry.checksum is None or entry.offset in self._verified:
            return
        with memoryview(mapped) as view, view[entry.offset : entry.offset + entry.nbytes] as value:
            intact = self._checksum(value) == entry.checksum
        if not intact:
            name = f"{entry.node_name}:{entry.output_slot}:{entry.debug_op}"
            self._damaged_values[entry.offset] = name
            raise DamagedValueError(
                f"{self._data}: the value of {name}, {entry.nbytes} bytes at {entry.offset}, has changed since it "
                "was written: its checksum is another. DebugDumpDir(verify=False) reads it as it is."
            )
        self._verified.add(entry.offset)

    def _mapped(self, end: int) -> mmap.mmap:
        if self._map is None or len(self._map) < end:
            with _open_plain(self._data) as file:
                size = os.fstat(file.fileno()).st_size
                if size < end:
                    raise DumpFormatError(f"{self._data}: {size} bytes long, but a value ends at {end}.")
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        return self._map


def _plausible(entry: IndexEntry, data_size: int) -> bool:
    try:
        count = element_count(entry.shape)
    except DumpFormatError:
        return False
    if entry.output_slot < 0 or entry.timestamp < 0:
        return False
    if not entry.has_value:
        return True
    if entry.inline is not None:
        if len(entry.inline) != entry.nbytes:
            return False
    elif entry.offset + entry.nbytes > data_size:
        return False
    kind = numpy_dtype(entry.dtype)
    return kind is None or count * kind.itemsize == entry.nbytes


def _open_plain(path: Path) -> Any:
    """Open a file that must not be a link to somewhere else."""
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb")
    except OSError as error:
        raise DumpFormatError(f"{path}: cannot be opened: {error.strerror}.") from error


def _read_from(path: Path, start: int, most: int) -> bytes:
    with _open_plain(path) as file:
        file.seek(start)
        content: bytes = file.read(most)
        return content


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
