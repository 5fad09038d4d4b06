"""Many records as arrays, and the numbers by which they know what they have in common."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensortap.records.record import Record

__all__ = ["MAX_BATCH_RANK", "RECORD_ROW", "KeyTable", "RecordBatch", "RecordKey"]


class RecordKey(NamedTuple):
    """What the records of one watch on one tensor have in common, run after run; shapes may vary."""

    node_name: str
    output_slot: int
    debug_op: str
    device: str
    dtype: str


_adding = threading.Lock()


def _begin_child() -> None:
    """After a fork: a thread that stayed with the parent may have held the lock."""
    global _adding
    _adding = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


class KeyTable:
    """Numbers for keys, from 0 in the order they come. It only grows, so a number stays valid for good.

    An engine keeps one as long as its program lives: whatever else is worked out about a key, such as its
    encoding, is then worked out once. Safe to use from several threads.

    Attributes:
        devices: the devices of all keys.

    >>> table = KeyTable()
    >>> key = RecordKey("fc/addmm", 0, "DebugIdentity", "/device:CPU:0", "float32")
    >>> table.add(key), table.add(key), table[0].dtype, len(table)
    (0, 0, 'float32', 1)
    """

    def __init__(self) -> None:
        self.devices: set[str] = set()
        # As plain tuples of text and numbers, which the garbage collector need not look at.
        self._keys: list[tuple[str, int, str, str, str]] = []
        self._numbers: dict[tuple[str, int, str, str, str], int] = {}

    def add(self, key: tuple[str, int, str, str, str]) -> int:
        """The number of a key, given here and now if it is new."""
        known = self._numbers.get(key)
        if known is not None:
            return known
        with _adding:
            known = self._numbers.get(key)
            if known is None:
                known = len(self._keys)
                node_name, slot, debug_op, device, dtype = key
                plain = (node_name, slot, debug_op, device, dtype)
                self.devices.add(device)
                self._keys.append(plain)
                self._numbers[plain] = known
        return known

    def __getitem__(self, number: int) -> RecordKey:
        return RecordKey(*self._keys[number])

    def __len__(self) -> int:
        return len(self._keys)

    def plain(self, numbers: Iterable[int]) -> list[tuple[str, int, str, str, str]]:
        """Keys as tuples, for whoever asks for thousands of them."""
        keys = self._keys
        return [keys[number] for number in numbers]


MAX_BATCH_RANK = 8
"""More dimensions than tensors have in practice, and few enough for rows of a fixed size."""

RECORD_ROW = np.dtype(
    [
        ("key", "<u4"),
        ("rank", "<u4"),
        ("timestamp", "<i8"),
        ("offset", "<i8"),
        ("nbytes", "<i8"),
        ("dims", "<i8", (MAX_BATCH_RANK,)),
    ]
)
"""One record of a batch: 96 bytes without gaps, the same as this C struct.

    struct Row {
        uint32_t key;        // number in the batch's table
        uint32_t rank;       // of the record's own value, at most 8
        int64_t  timestamp;  // microseconds since the epoch
        int64_t  offset;     // of the value in the batch's data; a multiple of 8
        int64_t  nbytes;     // of the value
        int64_t  dims[8];    // shape of the value; those from `rank` on are ignored
    };
"""


_OPAQUE_ROW = np.dtype((np.void, RECORD_ROW.itemsize))


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """Many records at the price of a few arrays. Iterating gives them one by one.

    All of them are initialised and have a value of fixed size: what is a `string`, has no value or more than
    8 dimensions is a `Record` of its own. Nobody changes rows and data any more once the batch is made.

    Attributes:
        table: what the key numbers mean.
        rows: one `RECORD_ROW` per record, in order of time.
        data: the memory of all values, anything flat that supports the buffer protocol; it keeps that memory alive.
            Values may lie in it in any order, with gaps between them. If they lie in the order of their rows,
            large ones at multiples of 64 and without much in between, they are written in one go, gaps included.
        has_bad: whether a numeric summary among the records has a NaN or an infinity, if whoever made them knows.
        size: of all values in bytes, if it is known already.

    >>> table = KeyTable()
    >>> number = table.add(RecordKey("fc/addmm", 0, "DebugNanCount", "/device:CPU:0", "int64"))
    >>> rows = np.zeros(1, RECORD_ROW)
    >>> rows[0] = (number, 1, 17, 0, 8, (1, 0, 0, 0, 0, 0, 0, 0))
    >>> batch = RecordBatch(table, rows, np.array([5]))
    >>> len(batch), batch.nbytes, [(record.watch_key, bytes(record.data)[0]) for record in batch]
    (1, 8, [('fc/addmm:0:DebugNanCount', 5)])
    """

    table: KeyTable
    rows: npt.NDArray[np.void]
    data: Any
    has_bad: bool | None = None
    size: int | None = None

    @property
    def nbytes(self) -> int:
        """Size of the values."""
        return int(self.rows["nbytes"].sum()) if self.size is None else self.size

    @property
    def memory(self) -> memoryview:
        """The data as flat bytes."""
        view = memoryview(self.data)
        return view.cast("B") if view.nbytes else memoryview(b"")

    def select(self, which: Any) -> RecordBatch:
        """The records that a mask, a list of places or a slice picks, over the same data."""
        return RecordBatch(self.table, self.rows[which], self.data)

    @property
    def device(self) -> str:
        """The device of the first record, thus of all that `per_device` put together."""
        return self.table[int(self.rows["key"][0])].device

    @classmethod
    def joined(cls, batches: Sequence[RecordBatch]) -> RecordBatch:
        """One batch with the records of several that share a table, over a copy of their data."""
        if len(batches) == 1:
            return batches[0]
        # As opaque items: NumPy would otherwise copy field by field.
        rows = np.concatenate([batch.rows.view(_OPAQUE_ROW) for batch in batches]).view(RECORD_ROW)
        pieces: list[bytes | memoryview] = []
        starts, end = [], 0
        for batch in batches:
            memory = batch.memory
            padding = -len(memory) % 64
            pieces += (memory, bytes(padding))
            starts.append(end)
            end += len(memory) + padding
        rows["offset"] += np.repeat(starts, [len(batch) for batch in batches])
        return cls(batches[0].table, rows, b"".join(pieces))

    def per_device(self) -> list[RecordBatch]:
        """The records of each device, in order; normally that is the batch itself."""
        if not len(self.rows):
            return []
        if len(self.table.devices) == 1:
            return [self]
        places: dict[str, list[int]] = {}
        for place, key in enumerate(self.rows["key"].tolist()):
            places.setdefault(self.table[key].device, []).append(place)
        return [self] if len(places) == 1 else [self.select(each) for each in places.values()]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Record]:
        memory = self.memory
        for number, rank, timestamp, offset, nbytes, dims in self.rows.tolist():
            node_name, slot, debug_op, device, dtype = self.table[number]
            value = memory[offset : offset + nbytes]
            yield Record(node_name, slot, debug_op, device, timestamp, dtype, tuple(dims[:rank]), value)
