"""Health pills as the observer packs them (`packed.h`): a quarter of what they are as records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensortap.records import RECORD_ROW, KeyTable, RecordBatch

__all__ = ["PackedBatch"]

_PACKED_BYTES = 64


class PackedBatch(RecordBatch):
    """A batch of pills that become records when somebody asks for rows or data: those of a run that is let go never do.

    Args:
        table: what the key numbers mean.
        packed: one after the other.
        beside: what is not in them.
        base: the time of the first.
        has_bad: whether one of them tells of a NaN or an infinity.
        size: of the values of all, unpacked.
        unpack: makes records of them.
    """

    __slots__ = ("_beside", "_count", "_packed", "_time", "_unpack")

    def __init__(
        self,
        table: KeyTable,
        packed: Any,
        beside: Any,
        base: int,
        has_bad: bool,
        size: int,
        unpack: Callable[..., int],
    ) -> None:
        put = object.__setattr__  # a batch is frozen
        put(self, "table", table)
        put(self, "has_bad", has_bad)
        put(self, "size", size)
        put(self, "_count", len(packed) // _PACKED_BYTES)
        put(self, "_packed", packed)
        put(self, "_beside", beside)
        put(self, "_time", base)
        put(self, "_unpack", unpack)

    def __len__(self) -> int:
        return int(self._count)

    def __getattr__(self, name: str) -> Any:
        """Rows and data, until they are there."""
        if name not in ("rows", "data"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        packed, beside = np.frombuffer(self._packed, np.uint8), np.frombuffer(self._beside, np.uint8)
        if len(packed) != len(self) * _PACKED_BYTES:  # another thread has just done it
            return object.__getattribute__(self, name)
        rows, data = np.empty(len(self), RECORD_ROW), np.empty(self.nbytes, np.uint8)
        places = (packed.ctypes.data, len(rows), beside.ctypes.data, len(beside))
        if not self._unpack(*places, self._time, rows.ctypes.data, data.ctypes.data, len(data)):
            raise ValueError("Packed health pills are damaged.")
        put = object.__setattr__
        put(self, "rows", rows)
        put(self, "data", data)
        put(self, "_beside", b"")
        put(self, "_packed", b"")
        return rows if name == "rows" else data
