"""Many records in one message, between our client and our server.

tfdbg sends an Event for every tensor. For runs with thousands of summaries nearly all the time would go into
messages, so where both sides are ours a whole `RecordBatch` travels as it is: its rows and its memory, and the
names of its keys the first time a stream mentions them. The Event around it has a plugin of its own.

    BatchEncoder().encode(batch)    bytes of the events that carry a batch; one encoder per stream
    BatchDecoder().decode(event)    the batch again; one decoder per stream

Key names are the same in every run of a program. They travel in blocks, and what a block means is remembered
by its bytes: the runs of a program share one `KeyTable` at the server too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.records import MAX_BATCH_RANK, RECORD_ROW, KeyTable, RecordBatch, RecordKey
from tensortap.wire.debug_service import MAX_CHUNK_BYTES, WireError
from tensortap.wire.encoding import header, varint
from tensortap.wire.events import BATCH_PLUGIN, MAX_NAME_BYTES, own_event, tensor_events
from tensortap.wire.messages import BatchMessage, DecodeError, KeyBlock
from tensortap.wire.values import numpy_dtype

__all__ = ["BatchDecoder", "BatchEncoder"]

MAX_TABLES = 64
MAX_KEYS = 1 << 20
_BLOCK_BYTES = MAX_CHUNK_BYTES // 4
_ALIGNMENT = 64


class BatchEncoder:
    """Encodes the batches of one stream.

    Args:
        max_bytes: how long the content of a message may be. A record that is longer travels as tfdbg would send it.

    >>> table = KeyTable()
    >>> rows = np.zeros(1, RECORD_ROW)
    >>> rows[0] = (table.add(("fc", 0, "DebugNanCount", "/device:CPU:0", "int64")), 1, 17, 0, 8, (1,) + (0,) * 7)
    >>> from tensortap.wire.debug_service import Event
    >>> [message] = BatchEncoder().encode(RecordBatch(table, rows, bytes(8)))
    >>> [record.watch_key for record in BatchDecoder().decode(Event.FromString(message))]
    ['fc:0:DebugNanCount']
    """

    def __init__(self, max_bytes: int = MAX_CHUNK_BYTES) -> None:
        self._max_bytes = max_bytes
        self._tables: dict[int, tuple[int, KeyTable]] = {}
        self._known: dict[int, int] = {}

    def encode(self, batch: RecordBatch) -> Iterator[bytes]:
        """The events that carry a batch, in the order of its records."""
        number, _ = self._tables.setdefault(id(batch.table), (len(self._tables), batch.table))
        blocks = self._new_blocks(number, batch.table)
        for block in blocks[:-1]:
            yield _message(number, block)
        block = blocks[-1] if blocks else b""
        for part in _parts(batch, self._max_bytes - len(block)):
            if len(part) == 1 and part.nbytes > self._max_bytes:
                for record in part:
                    yield from tensor_events(record, self._max_bytes)
                continue
            rows, data = _compact(part)
            yield _message(number, block, rows, data)
            block = b""
        if block:
            yield _message(number, block)

    def _new_blocks(self, number: int, table: KeyTable) -> list[bytes]:
        """The names of keys that this stream has not sent yet."""
        known, size = self._known.get(number, 0), len(table)
        if known == size:
            return []
        self._known[number] = size
        return _blocks(table, known, size)


def _message(number: int, block: bytes, rows: bytes = b"", data: bytes | memoryview = b"") -> bytes:
    parts: list[bytes | memoryview] = [b"\x08" + varint(number)]
    for field, content in ((2, block), (3, rows), (4, data)):
        parts += (header(field, len(content)), content)
    return b"".join(own_event(BATCH_PLUGIN, *parts))


def _parts(batch: RecordBatch, max_bytes: int) -> Iterator[RecordBatch]:
    """The batch in pieces that fit into messages; records that fit into none are alone."""
    sizes = batch.rows["nbytes"] + (RECORD_ROW.itemsize + _ALIGNMENT)
    ends = np.cumsum(sizes)
    start = 0
    while start < len(batch):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + max_bytes, "right")))
        yield batch if end - start == len(batch) else batch.select(slice(start, end))
        start = end


def _compact(batch: RecordBatch) -> tuple[bytes, bytes | memoryview]:
    """Rows and the memory they refer to, without what lies between the values if that is much."""
    rows, memory = batch.rows, batch.memory
    start = int(rows["offset"].min())
    end = int((rows["offset"] + rows["nbytes"]).max())
    if end - start <= batch.nbytes + len(rows) * _ALIGNMENT:
        start -= start % _ALIGNMENT
        rows = rows.copy()
        rows["offset"] -= start
        return rows.tobytes(), memory[start:end]
    pieces: list[bytes | memoryview] = []
    rows, position = rows.copy(), 0
    for place, (offset, nbytes) in enumerate(
        zip(rows["offset"].tolist(), rows["nbytes"].tolist(), strict=True)
    ):
        padding = -nbytes % 8
        pieces += (memory[offset : offset + nbytes], bytes(padding))
        rows["offset"][place] = position
        position += nbytes + padding
    return rows.tobytes(), b"".join(pieces)


# --- names of keys -------------------------------------------------------------------------------------

_encoded: weakref.WeakKeyDictionary[KeyTable, tuple[int, list[bytes]]] = weakref.WeakKeyDictionary()
_encoding = threading.Lock()


def _blocks(table: KeyTable, start: int, end: int) -> list[bytes]:
    """The names of some keys; those of the whole table are remembered, as every run begins with them."""
    if start:
        return list(_encode_keys(table, start, end))
    with _encoding:
        known = _encoded.get(table)
    if known is not None and known[0] == end:
        return known[1]
    blocks = list(_encode_keys(table, 0, end))
    with _encoding:
        _encoded[table] = (end, blocks)
    return blocks


def _encode_keys(table: KeyTable, start: int, end: int) -> Iterator[bytes]:
    block, size = KeyBlock(), 0
    for number in range(start, end):
        key = RecordKey(*map(_as_text, table[number]))
        block.keys.add(**key._asdict())
        size += len(key.node_name) + len(key.debug_op) + len(key.device) + len(key.dtype) + 16
        if size >= _BLOCK_BYTES:
            yield block.SerializeToString()
            block, size = KeyBlock(), 0
    if block.keys:
        yield block.SerializeToString()


def _as_text(part: Any) -> Any:
    """A name that protobuf accepts: half characters, which Python allows in text, are spelled out."""
    is_fine = not isinstance(part, str) or part.isascii()
    return part if is_fine else part.encode("utf-8", "backslashreplace").decode()


class _Table:
    """A table at the server, and what is needed to check rows that refer to it."""

    def __init__(self, keys: tuple[RecordKey, ...]) -> None:
        if len(keys) > MAX_KEYS:
            raise WireError(f"A stream with more than {MAX_KEYS} keys is not accepted.")
        self.keys = keys
        self.table = KeyTable()
        for place, key in enumerate(keys):
            if self.table.add(key) != place:
                raise WireError(f"{key} has two numbers.")
        kinds = [numpy_dtype(key.dtype) for key in keys]
        self.item_sizes: npt.NDArray[np.int64] = np.array(
            [0 if kind is None else kind.itemsize for kind in kinds], np.int64
        )


@lru_cache(maxsize=32)
def _table_of(blocks: tuple[bytes, ...]) -> _Table:
    """What a sequence of blocks means; remembered, because every run of a program begins with the same."""
    earlier = _table_of(blocks[:-1]).keys if len(blocks) > 1 else ()
    try:
        new = KeyBlock.FromString(blocks[-1]).keys
    except DecodeError as error:
        raise WireError(f"The names of keys cannot be read: {error}.") from error
    keys = tuple(
        RecordKey(key.node_name, key.output_slot, key.debug_op, key.device, key.dtype) for key in new
    )
    for key in keys:
        if not key.node_name or key.output_slot < 0 or max(map(len, (key[0], *key[2:]))) > MAX_NAME_BYTES:
            raise WireError(f"{str(key)[:200]} is no key.")
    return _Table(earlier + keys)


class BatchDecoder:
    """Decodes the batches of one stream, trusting nothing."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[bytes, ...]] = {}
        self._tables: dict[int, _Table] = {}

    def decode(self, event: Any) -> RecordBatch | None:
        """The batch that an event of the kind `BATCH` carries; None if it only names keys.

        Raises:
            WireError: a number is outside of what it refers to, or a size does not fit its shape.
        """
        try:
            message = BatchMessage.FromString(event.summary.value[0].metadata.plugin_data.content)
        except DecodeError as error:
            raise WireError(f"A batch cannot be read: {error}.") from error
        number = message.table
        if message.key_block:
            blocks = (*self._blocks.get(number, ()), message.key_block)
            if number not in self._blocks and len(self._blocks) >= MAX_TABLES:
                raise WireError(f"A stream with more than {MAX_TABLES} tables of keys is not accepted.")
            self._tables[number] = _table_of(blocks)
            self._blocks[number] = blocks
        if not message.rows:
            return None
        known = self._tables.get(number)
        if known is None:
            raise WireError("A batch comes before the names of its keys.")
        if len(message.rows) % RECORD_ROW.itemsize:
            raise WireError(f"{len(message.rows)} bytes are no whole number of rows.")
        batch = RecordBatch(known.table, np.frombuffer(message.rows, RECORD_ROW), message.data)
        _check(batch, known)
        return batch


def _check(batch: RecordBatch, known: _Table) -> None:
    rows, available = batch.rows, len(batch.data)
    if rows["key"].max() >= len(known.keys):
        raise WireError("A row names a key that the stream has not named.")
    if rows["rank"].max() > MAX_BATCH_RANK:
        raise WireError(f"A row has more than {MAX_BATCH_RANK} dimensions.")
    offsets, sizes = rows["offset"], rows["nbytes"]
    outside = (offsets < 0) | (sizes < 0) | (offsets > available) | (sizes > available - offsets)
    if outside.any() or (offsets % 8).any():
        raise WireError("A row refers to data that is not there.")
    used = np.arange(MAX_BATCH_RANK) < rows["rank"][:, None]
    dims = np.where(used, rows["dims"], 1)
    item_sizes = known.item_sizes[rows["key"]]
    # As floating point numbers, which cannot wrap around; exact for every size that memory can have.
    elements = np.prod(dims.astype(np.float64), axis=1)
    if (dims < 0).any() or (item_sizes == 0).any() or (elements * item_sizes != sizes).any():
        raise WireError("The size of a value does not fit its shape.")
