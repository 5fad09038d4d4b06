"""The two files of one device of one run, as their writer sees them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.pill import PILL_OP
from tensortap.records import Record, RecordBatch
from tensortap.store.batch import BatchLayout
from tensortap.store.checksum import ALGORITHMS, preferred
from tensortap.store.format import INLINE_LIMIT, IndexEntry, aligned, encode_entry, encode_header
from tensortap.store.health import PillBlock
from tensortap.store.layout import DATA_SUFFIX, INDEX_SUFFIX, device_stem
from tensortap.wire.values import as_bytes, element_count, numpy_dtype, pack_strings

__all__ = ["DeviceFiles"]

_WRITE_CHUNK = 1 << 30
"""Bytes per system call; Linux writes at most 2 GiB at once."""

_PIECES_AT_ONCE = 1000
"""Per system call; Linux takes 1024."""


MAX_KEPT_PILLS = 250_000
"""Of one run and device; they wait in memory for its end. Readers take the pills of longer runs from the index."""


class DeviceFiles:
    """Appends records to the index and the data file of one device.

    Attributes:
        nbytes: size of both files together.
        keys: node, slot and debug op of everything written, except in batches.
        pills: what was written of health pills, in order: node, slot, timestamp and value, or those of a batch.
        too_many_pills: there were more than can be kept, so `pills` is empty.
    """

    def __init__(self, run_dir: Path, device: str) -> None:
        stem = device_stem(device)
        self._data_path = run_dir / f"{stem}{DATA_SUFFIX}"
        self._data: int | None = None
        self._data_end = 0
        self.keys: set[tuple[str, int, str]] = set()
        self.pills: list[tuple[str, int, int, bytes] | PillBlock] = []
        self.too_many_pills = False
        self._pill_count = 0
        path = run_dir / f"{stem}{INDEX_SUFFIX}"
        self._checksum = preferred()
        header = encode_header({"device": device, "checksum": self._checksum})
        self._index = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write_all(self._index, memoryview(header), 0)
        except BaseException:
            os.close(self._index)
            path.unlink()
            raise
        self._index_end = len(header)

    @property
    def nbytes(self) -> int:
        """Size of both files."""
        return self._index_end + self._data_end

    def append(self, records: Sequence[Record]) -> int:
        """Append records, values first, then all index entries in one write; the bytes added."""
        before = self.nbytes
        data_end = self._data_end
        try:
            frames, entries = [], []
            for record in records:
                entry, value = _prepare(record, data_end, ALGORITHMS[self._checksum])
                # Encoded before the value is written: a record the index cannot hold must leave no trace.
                frames.append(encode_entry(entry))
                entries.append(entry)
                if entry.inline is None and entry.has_value:
                    _write_all(self._open_data(), value, entry.offset)
                    data_end = entry.offset + entry.nbytes
            block = b"".join(frames)
            _write_all(self._index, memoryview(block), self._index_end)
        except BaseException:
            self._roll_back()
            raise
        self._index_end += len(block)
        self._data_end = data_end
        self._remember(entries)
        return self.nbytes - before

    def append_batch(self, batch: RecordBatch) -> int:
        """Append the records of a batch, values first, then the frames in one write; the bytes added."""
        if not len(batch):
            return 0
        before = self.nbytes
        layout = BatchLayout(batch)
        try:
            data_end = self._write_outside(layout) if len(layout.outside) else self._data_end
            frames = layout.frames()
            size = _write_pieces(self._index, frames, self._index_end)
        except BaseException:
            self._roll_back()
            raise
        self._index_end += size
        self._data_end = data_end
        self._keep(layout.pills, len(layout.pills.pill_keys))
        return self.nbytes - before

    def _write_outside(self, layout: BatchLayout) -> int:
        """Write values to the data file; its new end."""
        file, start = self._open_data(), aligned(self._data_end)
        if layout.piece is not None:
            _write_all(file, memoryview(layout.piece.memory), start)
            layout.place_outside(layout.piece.offsets + start, self._checksum)
            return start + len(layout.piece.memory)
        offsets, end = [], start
        for value in layout.values_outside():
            offsets.append(aligned(end))
            _write_all(file, value, offsets[-1])
            end = offsets[-1] + len(value)
        layout.place_outside(np.array(offsets), self._checksum)
        return end

    def _remember(self, entries: list[IndexEntry]) -> None:
        for entry in entries:
            self.keys.add((entry.node_name, entry.output_slot, entry.debug_op))
            if entry.debug_op == PILL_OP and entry.dtype == "float64" and entry.inline is not None:
                self._keep((entry.node_name, entry.output_slot, entry.timestamp, entry.inline), 1)

    def _keep(self, pills: tuple[str, int, int, bytes] | PillBlock, count: int) -> None:
        self._pill_count += count
        self.too_many_pills = self._pill_count > MAX_KEPT_PILLS
        if self.too_many_pills:
            self.pills.clear()
        else:
            self.pills.append(pills)

    def close(self) -> None:
        """Close both files."""
        for file in (self._index, self._data):
            if file is not None and file >= 0:
                os.close(file)
        self._index, self._data = -1, None

    def _open_data(self) -> int:
        if self._data is None:
            self._data = os.open(self._data_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        return self._data

    def _roll_back(self) -> None:
        # If even truncating fails, the next record overwrites the torn one: writes are positioned.
        with contextlib.suppress(OSError):
            os.ftruncate(self._index, self._index_end)
        if self._data is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._data, self._data_end)


def _prepare(
    record: Record, data_end: int, checksum: Callable[[memoryview], int]
) -> tuple[IndexEntry, memoryview]:
    """The entry of a record whose value would be appended at `data_end`, and the bytes of that value."""
    has_value = record.initialized and record.data is not None
    value = memoryview(b"")
    if has_value:
        data: Any = pack_strings(record.data) if record.dtype == "string" else record.data
        # A copy of a small array is cheaper than a view of it, and it is stored in the entry anyway.
        small = isinstance(data, np.ndarray) and data.nbytes <= INLINE_LIMIT
        value = memoryview(data.tobytes()) if small else as_bytes(data)
        _check_size(record, len(value))
    inline = bytes(value) if has_value and len(value) <= INLINE_LIMIT else None
    entry = IndexEntry(
        record.node_name,
        record.output_slot,
        record.debug_op,
        record.timestamp,
        record.dtype,
        tuple(record.shape),
        record.initialized,
        has_value,
        -1 if inline is not None else aligned(data_end),
        len(value),
        inline,
        checksum(value) if has_value and inline is None else None,
    )
    return entry, value


def _check_size(record: Record, nbytes: int) -> None:
    count = element_count(tuple(record.shape))
    if record.dtype == "string":
        fits = count == len(record.data)
    else:
        kind = numpy_dtype(record.dtype)
        fits = kind is None or count * kind.itemsize == nbytes
    if not fits:
        raise ValueError(
            f"The record {record.watch_key} holds {nbytes} bytes, which cannot be "
            f"{record.dtype}{list(record.shape)}."
        )


def _write_pieces(file: int, pieces: Sequence[bytes | memoryview], position: int) -> int:
    """Write pieces one behind the other; the bytes written."""
    size = sum(map(len, pieces))
    written = os.pwritev(file, pieces, position) if len(pieces) <= _PIECES_AT_ONCE else 0
    if written < size:
        _write_all(file, memoryview(b"".join(pieces))[written:], position + written)
    return size


def _write_all(file: int, content: memoryview, position: int) -> None:
    while content:
        written = os.pwrite(file, content[:_WRITE_CHUNK], position)
        content = content[written:]
        position += written
