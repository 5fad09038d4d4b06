"""Parcels: records and batches that are handed over together.

Waking a thread for each of thousands of tiny summaries would cost training more than the summaries do. A parcel leaves
when it is large, when it is old, or when the run ends.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from tensortap.records import RECORD_ROW, Record, RecordBatch

__all__ = ["PARCEL_SECS", "Parcel", "Size", "company", "size_of"]

PARCEL_BYTES = 1 << 20
PARCEL_ITEMS = 256
PARCEL_SECS = 0.05
"""How old a parcel becomes: so much a crash may lose."""
RECORD_OVERHEAD_BYTES = 1024
"""What a waiting record weighs besides its value, so that a bound in bytes also bounds their number."""
SMALL_BYTES = 256 << 10
"""Below this, copying a value to its neighbours costs less than handling it by itself."""


Size = tuple[int, int, int]
"""How much an item is: number of records, size of their values, bytes of memory that wait with it. For every record."""


def size_of(item: Record | RecordBatch) -> Size:
    """The size of a record or a batch.

    >>> size_of(Record("x", 0, "DebugNanCount", "/device:CPU:0", 18, "int64", (1,), bytes(8)))
    (1, 8, 1032)
    """
    nbytes = item.nbytes
    if isinstance(item, RecordBatch):
        return len(item), nbytes, nbytes + len(item) * RECORD_ROW.itemsize
    return 1, nbytes, nbytes + RECORD_OVERHEAD_BYTES


def company(batch: RecordBatch) -> int:
    """Equal for batches that are better joined: small ones with the same table."""
    return id(batch.table) if batch.nbytes <= SMALL_BYTES else id(batch)


ItemT = TypeVar("ItemT")


class Parcel(Generic[ItemT]):
    """Items that wait to be handed over, in their order.

    Attributes:
        is_full: it is worth handing over.
    """

    __slots__ = ("is_full", "items", "records", "value_bytes", "weight")

    def __init__(self) -> None:
        self.items: list[ItemT] = []
        self.records = 0
        self.value_bytes = 0
        self.weight = 0
        self.is_full = False

    def add(self, item: ItemT, size: Size) -> None:
        """Put an item behind the others."""
        records, value_bytes, weight = size
        self.items.append(item)
        self.records += records
        self.value_bytes += value_bytes
        self.weight += weight
        self.is_full = self.weight >= PARCEL_BYTES or len(self.items) >= PARCEL_ITEMS
