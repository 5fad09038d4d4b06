"""Parcels: records and batches that are handed over together.

Waking a thread for each of thousands of tiny summaries would cost training more than the summaries do. A parcel leaves
when it is large, when it is old, or when the run ends.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from tensortap.records import Record, RecordBatch

__all__ = ["PARCEL_SECS", "Parcel", "Size", "company", "size_of"]

PARCEL_BYTES = 1 << 20
PARCEL_ITEMS = 256
PARCEL_SECS = 0.05
"""How old a parcel becomes: so much a crash may lose."""
RECORD_OVERHEAD_BYTES = 1024
"""What a waiting record weighs besides its value, so that a bound in bytes also bounds their number."""
SMALL_BYTES = 256 << 10
"""Below this, copying a value to its neighbours costs less than handling it by itself."""


class Size(NamedTuple):
    """How much an item is.

    Attributes:
        records: how many.
        value_bytes: size of their values.
        weight: bytes of memory that wait with it.
    """

    records: int
    value_bytes: int
    weight: int


def size_of(item: Record | RecordBatch) -> Size:
    """The size of a record or a batch.

    >>> size_of(Record("x", 0, "DebugNanCount", "/device:CPU:0", 18, "int64", (1,), bytes(8)))
    Size(records=1, value_bytes=8, weight=1032)
    """
    if isinstance(item, RecordBatch):
        return Size(len(item), item.nbytes, item.nbytes + item.rows.nbytes)
    return Size(1, item.nbytes, item.nbytes + RECORD_OVERHEAD_BYTES)


def company(batch: RecordBatch) -> int:
    """Equal for batches that are better joined: small ones with the same table."""
    return id(batch.table) if len(batch.memory) <= SMALL_BYTES else id(batch)


ItemT = TypeVar("ItemT")


class Parcel(Generic[ItemT]):
    """Items that wait to be handed over, in their order."""

    def __init__(self) -> None:
        self.items: list[ItemT] = []
        self.records = 0
        self.value_bytes = 0
        self.weight = 0

    def add(self, item: ItemT, size: Size) -> None:
        """Put an item behind the others."""
        self.items.append(item)
        self.records += size.records
        self.value_bytes += size.value_bytes
        self.weight += size.weight

    @property
    def is_full(self) -> bool:
        """Whether it is worth handing over."""
        return self.weight >= PARCEL_BYTES or len(self.items) >= PARCEL_ITEMS
