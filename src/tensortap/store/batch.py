"""From a `RecordBatch` to what the files of one device hold, with work that does not grow with its records."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tensortap.pill import PILL_BYTES, PILL_OP, PILL_SIZE
from tensortap.records import MAX_BATCH_RANK, KeyTable, RecordBatch
from tensortap.store.checksum import checksums
from tensortap.store.format import (
    ALIGNMENT,
    IN_BLOCK,
    IN_DATA_FILE,
    INLINE_LIMIT,
    FrameTooLargeError,
    block_row,
    encode_block,
    encode_key,
)
from tensortap.store.health import PillBlock
from tensortap.wire.values import numpy_dtype

__all__ = ["BatchLayout", "pills_of"]

Integers: TypeAlias = npt.NDArray[np.int64]


class KeyFacts(NamedTuple):
    """What is worked out once about the keys of a table: their numbers are places in these columns.

    Attributes:
        encoded: as a block holds them.
        itemsizes: bytes of an element; -1 for a type whose size is not known.
        pills: whether records of the key can be health pills.
    """

    encoded: list[bytes]
    itemsizes: Integers
    pills: npt.NDArray[np.bool_]

    def grown(self, table: KeyTable) -> KeyFacts:
        """The same with the keys added since."""
        added = table.plain(range(len(self.encoded), len(table)))
        kinds = {dtype: numpy_dtype(dtype) for *_, dtype in added}
        itemsizes = {dtype: -1 if kind is None else kind.itemsize for dtype, kind in kinds.items()}
        sizes = [itemsizes[dtype] for *_, dtype in added]
        pills = [debug_op == PILL_OP and dtype == "float64" for _, _, debug_op, _, dtype in added]
        encoded = [encode_key(node, slot, debug_op, dtype) for node, slot, debug_op, _, dtype in added]
        return KeyFacts(
            self.encoded + encoded,
            np.concatenate([self.itemsizes, np.array(sizes, np.int64)]),
            np.concatenate([self.pills, np.array(pills, np.bool_)]),
        )


# Replaced, never changed, so that threads need no lock, which a fork could leave closed for good.
_facts: weakref.WeakKeyDictionary[KeyTable, KeyFacts] = weakref.WeakKeyDictionary()
_NO_FACTS = KeyFacts([], np.zeros(0, np.int64), np.zeros(0, np.bool_))


def _facts_of(table: KeyTable) -> KeyFacts:
    facts = _facts.get(table, _NO_FACTS)
    if len(facts.encoded) < len(table):
        facts = _facts[table] = facts.grown(table)
    return facts


class Placed(NamedTuple):
    """Values that lie close together.

    Attributes:
        memory: all of them.
        offsets: where each one starts in it.
    """

    memory: bytes | memoryview
    offsets: Integers


class BatchLayout:
    """A checked batch, not empty: what goes to the data file, the frames for the index, the pills for the history.

    Attributes:
        outside: places of the records whose values go to the data file: the large ones, or all if they lie in
            memory as they must in the file and need not be picked out.
        piece: the values for the data file as one piece of memory, if they can be written so.
        pills: what the health history wants to know.

    Raises:
        ValueError: rows that contradict their table or data.
    """

    def __init__(self, batch: RecordBatch) -> None:
        facts = _facts_of(batch.table)
        self._memory = batch.memory
        self._encoded = facts.encoded
        # Copies, because every look at a column of the rows reads all of them.
        self._keys = batch.rows["key"].copy()
        self._offsets: Integers = batch.rows["offset"].copy()
        self._sizes: Integers = batch.rows["nbytes"].copy()
        self._stored = self._checked(batch.rows, facts)
        self._checksums = np.zeros(len(self._sizes), np.uint32)
        self.outside = np.flatnonzero(self._sizes > INLINE_LIMIT)
        self.piece = None
        if len(self.outside):
            self.piece = _aligned_piece(self._memory, self._offsets, self._sizes)
            if self.piece is not None:
                self.outside = np.arange(len(self._sizes))
            else:
                self.piece = _aligned_piece(
                    self._memory, self._offsets[self.outside], self._sizes[self.outside]
                )
        is_pill, values = pills_of(batch)
        timestamps = batch.rows["timestamp"][is_pill]
        self.pills = PillBlock(batch.table, self._keys, self._keys[is_pill], timestamps, values)

    def _checked(self, rows: npt.NDArray[Any], facts: KeyFacts) -> npt.NDArray[Any]:
        """The rows as a block holds them, except where values are."""
        ranks = rows["rank"].copy()
        most = int(ranks.max())
        if most > MAX_BATCH_RANK or self._keys.max() >= len(self._encoded):
            raise ValueError(f"A batch has records of rank {most}, or with a key that is not in its table.")
        stored = np.empty(len(rows), block_row(most))
        stored["flags"] = IN_BLOCK
        stored["rank"] = ranks
        stored["timestamp"] = rows["timestamp"]
        stored["nbytes"] = self._sizes
        elements = np.ones(len(rows), np.int64)
        wrong = (self._offsets | self._sizes) < 0
        for place in range(most):
            dims = np.where(ranks > place, rows["dims"][:, place], 1)
            elements *= dims
            wrong |= dims < 0
            stored["dims"][:, place] = dims
        itemsizes = facts.itemsizes[self._keys]
        wrong |= (elements * itemsizes != self._sizes) & (itemsizes >= 0)
        wrong |= (self._offsets & 7) != 0
        wrong |= self._offsets > len(self._memory) - self._sizes
        if wrong.any():
            raise ValueError(
                f"{np.count_nonzero(wrong)} of {len(rows)} records of a batch have a size, shape and place "
                f"that cannot be; the first is {rows[wrong.argmax()]} in {len(self._memory)} bytes."
            )
        return stored

    def values_outside(self) -> list[memoryview]:
        """The values for the data file, one by one."""
        return _values(self._memory, self._offsets[self.outside], self._sizes[self.outside])

    def place_outside(self, offsets: Integers, algorithm: str) -> None:
        """Tell where in the data file its values went, and which checksum they get."""
        self._stored["flags"][self.outside] = IN_DATA_FILE
        self._stored["offset"][self.outside] = offsets
        self._checksums[self.outside] = checksums(
            algorithm, self._memory, self._offsets[self.outside], self._sizes[self.outside]
        )

    def frames(self) -> list[bytes | memoryview]:
        """All frames for the index, in pieces; after `place_outside`."""
        return self._frames(0, len(self._stored))

    def _frames(self, start: int, end: int) -> list[bytes | memoryview]:
        rows = self._stored[start:end]
        small = rows["flags"] == IN_BLOCK
        values = _packed(self._memory, self._offsets[start:end][small], self._sizes[start:end][small])
        rows["offset"][small] = values.offsets
        outside = self._checksums[start:end][~small].astype("<u4").tobytes()
        keys = b"".join(map(self._encoded.__getitem__, self._keys[start:end].tolist()))
        try:
            return [*encode_block(rows, keys, values.memory, outside)]
        except FrameTooLargeError:
            if end - start == 1:
                raise
            middle = (start + end) // 2
            return self._frames(start, middle) + self._frames(middle, end)


def pills_of(batch: RecordBatch) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Which records of a batch are health pills, and a copy of their fixed part: float64[pills, 14]."""
    rows = batch.rows
    is_pill = _facts_of(batch.table).pills[rows["key"]]
    is_pill &= (rows["nbytes"] >= PILL_BYTES) & (rows["nbytes"] <= INLINE_LIMIT)
    memory = batch.memory
    # Every place where a pill may begin as a row of its own: so each is copied whole, not number by number.
    places = max(len(memory) - PILL_BYTES + 8, 0) // 8
    windows = np.ndarray((places, PILL_SIZE), np.float64, memory, strides=(8, 8))
    return is_pill, windows[rows["offset"][is_pill] // 8]


def _piece(memory: memoryview, offsets: Integers, sizes: Integers) -> Placed | None:
    """The memory from the first value to the last, unless more than alignment lies between them."""
    if not len(offsets):
        return Placed(b"", offsets)
    start, end = int(offsets.min()), int((offsets + sizes).max())
    if end - start > int(sizes.sum()) + ALIGNMENT * len(sizes):
        return None
    return Placed(memory[start:end], offsets - start)


def _packed(memory: memoryview, offsets: Integers, sizes: Integers) -> Placed:
    """The values close together, copied if they are not."""
    piece = _piece(memory, offsets, sizes)
    if piece is not None:
        return piece
    return Placed(b"".join(_values(memory, offsets, sizes)), np.cumsum(sizes) - sizes)


def _aligned_piece(memory: memoryview, offsets: Integers, sizes: Integers) -> Placed | None:
    """The same as `_piece`, if every value then begins at a multiple of the alignment."""
    piece = _piece(memory, offsets, sizes)
    return piece if piece is not None and not (piece.offsets % ALIGNMENT).any() else None


def _values(memory: memoryview, offsets: Integers, sizes: Integers) -> list[memoryview]:
    pairs = zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True)
    return [memory[start:end] for start, end in pairs]
