"""The two files of one device of one run, as their reader sees them."""

from __future__ import annotations

import mmap
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from tensortap.store.format import Damage, DumpFormatError, Entry, decode_header, scan_entries
from tensortap.store.layout import DATA_SUFFIX
from tensortap.store.source import StoredTensor, time_order
from tensortap.store.values import (
    InconvertibleTensorProto,
    TensorValue,
    element_count,
    numpy_dtype,
    to_array,
)

__all__ = ["DeviceReader"]


class DeviceReader:
    """Follows one index file and maps its data file.

    Attributes:
        device: full name of the device.
        tensors: the records read so far, in numeric time order.
        position: how far the index was read; everything before is complete.
    """

    def __init__(self, index: Path) -> None:
        self._index = index
        self._data = index.with_suffix(DATA_SUFFIX)
        self._map: mmap.mmap | None = None
        self._ordinals: dict[tuple[str, int, str, int], int] = {}
        self._damaged = self._unusable = self._torn = 0
        self.tensors: list[StoredTensor] = []
        head = _read_from(index, 0)
        facts, self.position = decode_header(head, index.name)
        device = facts.get("device")
        if not isinstance(device, str):
            raise DumpFormatError(f"{index.name}: the header names no device.")
        self.device = device
        self._pending: bytes | None = head

    @property
    def notices(self) -> list[str]:
        """What is damaged, in sentences."""
        said = []
        if self._damaged:
            said.append(
                f"{self._index.name}: {self._damaged} bytes of the index are damaged and were skipped."
            )
        if self._torn:
            said.append(
                f"{self._index.name}: the last {self._torn} bytes are an incomplete entry: its writer was "
                "stopped, or is still writing. Everything before is intact."
            )
        if self._unusable:
            said.append(
                f"{self._index.name}: {self._unusable} record(s) were left out: their value is missing or "
                "has an impossible size."
            )
        return said

    def refresh(self) -> None:
        """Read the entries added since."""
        start = 0 if self._pending is not None else self.position
        buffer = self._pending if self._pending is not None else _read_from(self._index, start)
        self._pending = None
        self._torn = 0
        data_size = _size(self._data)
        found: list[StoredTensor] = []
        for item in scan_entries(buffer, self.position - start):
            if isinstance(item, Damage):
                if item.at_end:
                    self._torn = item.nbytes
                    break
                self._damaged += item.nbytes
                self.position = start + item.start + item.nbytes
                continue
            entry, _ = item
            tensor = self._stored(entry, data_size)
            if tensor is None:
                self._unusable += 1
            else:
                found.append(tensor)
        else:
            self.position = start + len(buffer)
        if self._torn:
            self.position = start + len(buffer) - self._torn
        if found:
            self.tensors += found
            self.tensors.sort(key=time_order)

    def _stored(self, entry: Entry, data_size: int) -> StoredTensor | None:
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
        )

    def _load(self, entry: Entry) -> TensorValue:
        if not entry.has_value:
            described = f"{entry.dtype}{list(entry.shape)}"
            return InconvertibleTensorProto(described, initialized=entry.initialized)
        if entry.inline is not None:
            return to_array(entry.inline, entry.dtype, entry.shape, 0, entry.nbytes)
        return to_array(
            self._mapped(entry.offset + entry.nbytes), entry.dtype, entry.shape, entry.offset, entry.nbytes
        )

    def _mapped(self, end: int) -> mmap.mmap:
        if self._map is None or len(self._map) < end:
            with _open_plain(self._data) as file:
                size = os.fstat(file.fileno()).st_size
                if size < end:
                    raise DumpFormatError(f"{self._data}: {size} bytes long, but a value ends at {end}.")
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        return self._map


def _plausible(entry: Entry, data_size: int) -> bool:
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


def _read_from(path: Path, start: int) -> bytes:
    with _open_plain(path) as file:
        file.seek(start)
        content: bytes = file.read()
        return content


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
