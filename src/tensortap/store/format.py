"""Binary form of the index files of a packed run: pure functions between bytes and entries.

An index file is a header followed by frames: an entry holds one record, a block those of a batch. Every frame
starts with a marker, its length and a CRC, so a reader knows where a torn tail begins and can find the next
good frame behind damaged bytes. The layout is described for other programs in `docs/format.md`; numbers are
little-endian.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tensortap.errors import DumpFormatError, TensortapError

__all__ = [
    "ALIGNMENT",
    "INLINE_LIMIT",
    "IN_BLOCK",
    "IN_DATA_FILE",
    "VERSION",
    "Damage",
    "FrameTooLargeError",
    "IndexEntry",
    "aligned",
    "block_row",
    "decode_header",
    "encode_block",
    "encode_entry",
    "encode_header",
    "encode_key",
    "scan_entries",
]

VERSION = 4
"""Version of the packed layout; readers accept this one and every earlier one."""

ALIGNMENT = 64
"""Bytes; a cache line, and what vectorised readers of the mapped values like best."""

INLINE_LIMIT = 512
"""Bytes; smaller values live in the index: a health pill then costs one write and is CRC-protected."""

MAX_FRAME_BYTES = 1 << 20
"""A length above this is damage: it bounds what a corrupt index can make a reader allocate."""

_MAGIC = b"TTAPIDX\n"
_HEADER = struct.Struct("<8sIII")  # magic, version, payload length, CRC of the payload
_FRAME = struct.Struct("<4sII")  # marker, body length, CRC of the body
_ENTRY_MARKER = b"TTr\x01"
_BLOCK_MARKER = b"TTb\x01"
_MARKERS = re.compile(b"TT[rb]\x01")
# flags, output slot, timestamp, value offset, value bytes, lengths: node name, debug op, dtype, rank
_BODY = struct.Struct("<IiqQQIHHH")
_BLOCK = struct.Struct("<III")  # records, dimensions per row, bytes of all keys
_KEY = struct.Struct("<iIHH")  # output slot, lengths: node name, debug op, dtype
_CHECKSUM = struct.Struct("<I")
_MAX_BLOCK_DIMS = 64

_INITIALIZED, _HAS_VALUE, _INLINE, _CHECKED = 1, 2, 4, 8
IN_DATA_FILE = _INITIALIZED | _HAS_VALUE | _CHECKED
IN_BLOCK = _INITIALIZED | _HAS_VALUE | _INLINE
_ALL_FLAGS = IN_DATA_FILE | _INLINE


class FrameTooLargeError(TensortapError, ValueError):
    """A frame would be larger than readers accept."""


class IndexEntry(NamedTuple):
    """One record as the index describes it. A tuple, because a run makes thousands of them.

    Attributes:
        offset: where the value starts in the data file; -1 when it is in `inline`.
        nbytes: size of the stored value.
        inline: the value itself if it is small, else None.
        has_value: False for a tensor without a value.
        checksum: of a value in the data file, by the algorithm that the header of the index names; None in
            indexes of format version 2 and before. Inline values are covered by the CRC of their frame.
    """

    node_name: str
    output_slot: int
    debug_op: str
    timestamp: int
    dtype: str
    shape: tuple[int, ...]
    initialized: bool
    has_value: bool
    offset: int
    nbytes: int
    inline: bytes | None = None
    checksum: int | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of an index that holds no readable entry.

    Attributes:
        at_end: nothing readable follows: a torn tail, or an entry that is still being written.
    """

    start: int
    nbytes: int
    at_end: bool


def aligned(position: int) -> int:
    """The next position at which a value may start.

    >>> aligned(0), aligned(1), aligned(64)
    (0, 64, 64)
    """
    return -(-position // ALIGNMENT) * ALIGNMENT


def encode_header(facts: dict[str, Any]) -> bytes:
    """The first bytes of an index: `facts` as JSON, padded to the alignment."""
    payload = json.dumps(facts, sort_keys=True).encode()
    payload += b" " * (aligned(_HEADER.size + len(payload)) - _HEADER.size - len(payload))
    return _HEADER.pack(_MAGIC, VERSION, len(payload), zlib.crc32(payload)) + payload


def decode_header(buffer: bytes, name: str = "index") -> tuple[dict[str, Any], int]:
    """The facts of an index and the position of its first entry.

    Raises:
        DumpFormatError: not an index, damaged, or of a newer version; `name` says which file.
    """
    if len(buffer) < _HEADER.size:
        raise DumpFormatError(f"{name}: {len(buffer)} bytes are too few for an index header.")
    magic, version, length, checksum = _HEADER.unpack_from(buffer)
    if magic != _MAGIC:
        raise DumpFormatError(f"{name}: not a tensortap index; it starts with {magic!r}.")
    if version > VERSION:
        raise DumpFormatError(
            f"{name}: format version {version} is newer than this reader, which knows up to {VERSION}. "
            "Upgrade tensortap to read it."
        )
    payload = buffer[_HEADER.size : _HEADER.size + length]
    if len(payload) != length or zlib.crc32(payload) != checksum:
        raise DumpFormatError(f"{name}: the index header is damaged.")
    try:
        facts = json.loads(payload)
    except ValueError as error:
        raise DumpFormatError(f"{name}: the index header is no JSON: {error}.") from error
    if not isinstance(facts, dict):
        raise DumpFormatError(f"{name}: the index header holds no object.")
    return facts, _HEADER.size + length


def encode_entry(entry: IndexEntry) -> bytes:
    """One entry with its frame.

    >>> entry = IndexEntry("fc/addmm", 0, "DebugNanCount", 17, "int64", (1,), True, True, -1, 8, bytes(8))
    >>> list(scan_entries(encode_entry(entry))) == [(entry, 0)]
    True
    """
    name = entry.node_name.encode("utf-8", "surrogateescape")
    debug_op = entry.debug_op.encode("utf-8", "surrogateescape")
    dtype = entry.dtype.encode("utf-8", "surrogateescape")
    flags = (
        _INITIALIZED * entry.initialized
        | _HAS_VALUE * entry.has_value
        | _INLINE * (entry.inline is not None)
        | _CHECKED * (entry.checksum is not None)
    )
    rank = len(entry.shape)
    body = b"".join(
        (
            _BODY.pack(
                flags,
                entry.output_slot,
                entry.timestamp,
                max(entry.offset, 0),
                entry.nbytes,
                len(name),
                len(debug_op),
                len(dtype),
                rank,
            ),
            struct.pack(f"<{rank}q", *entry.shape),
            name,
            debug_op,
            dtype,
            b"" if entry.checksum is None else _CHECKSUM.pack(entry.checksum),
            entry.inline or b"",
        )
    )
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(
            f"The index entry of {entry.node_name[:80]!r}… takes {len(body)} bytes; the limit is 1 MiB."
        )
    return _FRAME.pack(_ENTRY_MARKER, len(body), zlib.crc32(body)) + body


def block_row(dims: int) -> np.dtype[Any]:
    """A row of a block whose records have at most `dims` dimensions."""
    return np.dtype(
        [
            ("flags", "<u4"),
            ("rank", "<u4"),
            ("timestamp", "<i8"),
            ("offset", "<u8"),
            ("nbytes", "<u8"),
            ("dims", "<i8", (dims,)),
        ]
    )


def encode_key(node_name: str, output_slot: int, debug_op: str, dtype: str) -> bytes:
    """What a block says about one record besides its row."""
    texts = [text.encode("utf-8", "surrogateescape") for text in (node_name, debug_op, dtype)]
    return b"".join((_KEY.pack(output_slot, *map(len, texts)), *texts))


def encode_block(
    rows: npt.NDArray[Any], keys: bytes, values: bytes | memoryview, checksums: bytes = b""
) -> tuple[bytes | memoryview, ...]:
    """Many records in one frame, in pieces to write one after the other: values are not copied.

    Args:
        rows: one per record, of a type that `block_row` makes.
        keys: the `encode_key` of every record, in order.
        values: what inline rows have offsets into.
        checksums: u32 for every row with the flags `IN_DATA_FILE`, in order.

    >>> rows = np.zeros(1, block_row(1))
    >>> rows[0] = (IN_BLOCK, 1, 17, 0, 8, (1,))
    >>> frame = encode_block(rows, encode_key("fc/addmm", 0, "DebugNanCount", "int64"), bytes(8))
    >>> [entry.inline == bytes(8) for entry, _ in scan_entries(b"".join(frame))]
    [True]
    """
    head = _BLOCK.pack(len(rows), rows.dtype["dims"].shape[0], len(keys))
    body = (head, rows.tobytes(), keys, checksums, values)
    length = sum(map(len, body))
    if length > MAX_FRAME_BYTES:
        raise FrameTooLargeError(f"{len(rows)} records take {length} bytes of the index; the limit is 1 MiB.")
    checksum = 0
    for piece in body:
        checksum = zlib.crc32(piece, checksum)
    return _FRAME.pack(_BLOCK_MARKER, length, checksum), *body


def scan_entries(buffer: bytes, start: int = 0) -> Iterator[tuple[IndexEntry, int] | Damage]:
    """Every readable entry from `start` with the position of its frame, and the damage between and behind."""
    position = start
    end = len(buffer)
    while position < end:
        found = _frame_at(buffer, position)
        if found is not None:
            entries, following = found
            for entry in entries:
                yield entry, position
            position = following
            continue
        resumed = _next_frame(buffer, position + 1)
        yield Damage(position, (resumed or end) - position, at_end=resumed is None)
        if resumed is None:
            return
        position = resumed


def _next_frame(buffer: bytes, position: int) -> int | None:
    for found in _MARKERS.finditer(buffer, position):
        if _frame_at(buffer, found.start()) is not None:
            return found.start()
    return None


def _frame_at(buffer: bytes, position: int) -> tuple[list[IndexEntry], int] | None:
    body_start = position + _FRAME.size
    if body_start > len(buffer):
        return None
    marker, length, checksum = _FRAME.unpack_from(buffer, position)
    following = body_start + length
    if length > MAX_FRAME_BYTES or following > len(buffer):
        return None
    decode = _DECODERS.get(marker)
    if decode is None:
        return None
    body = buffer[body_start:following]
    if zlib.crc32(body) != checksum:
        return None
    entries = decode(body)
    return None if entries is None else (entries, following)


def _decode_entry(body: bytes) -> list[IndexEntry] | None:
    if len(body) < _BODY.size:
        return None
    flags, slot, timestamp, offset, nbytes, name_len, op_len, dtype_len, rank = _BODY.unpack_from(body)
    names = _BODY.size + 8 * rank
    after_name = names + name_len
    after_op = after_name + op_len
    after_dtype = after_op + dtype_len
    after_checksum = after_dtype + (_CHECKSUM.size if flags & _CHECKED else 0)
    # Exactly: a flipped bit can make one marker of the other, whose frames have the same checksum.
    end = after_checksum + nbytes if flags & _INLINE else after_checksum
    if end != len(body) or flags > _ALL_FLAGS:
        return None
    inline = body[after_checksum:] if flags & _INLINE else None
    entry = IndexEntry(
        _text(body[names:after_name]),
        slot,
        _text(body[after_name:after_op]),
        timestamp,
        _text(body[after_op:after_dtype]),
        struct.unpack_from(f"<{rank}q", body, _BODY.size),
        bool(flags & _INITIALIZED),
        bool(flags & _HAS_VALUE),
        -1 if inline is not None else offset,
        nbytes,
        inline,
        _CHECKSUM.unpack_from(body, after_dtype)[0] if flags & _CHECKED else None,
    )
    return [entry]


def _decode_block(body: bytes) -> list[IndexEntry] | None:
    if len(body) < _BLOCK.size:
        return None
    count, dims, key_bytes = _BLOCK.unpack_from(body)
    if dims > _MAX_BLOCK_DIMS:
        return None
    row = struct.Struct(f"<IIqQQ{dims}q")
    position = _BLOCK.size + count * row.size
    keys_end = position + key_bytes
    if keys_end > len(body):
        return None
    rows = list(row.iter_unpack(body[_BLOCK.size : position]))
    checked = sum(1 for each in rows if each[0] & _CHECKED)
    values = keys_end + _CHECKSUM.size * checked
    if values > len(body):
        return None
    checksums = iter(struct.unpack_from(f"<{checked}I", body, keys_end))
    entries = []
    for flags, rank, timestamp, offset, nbytes, *shape in rows:
        name = position + _KEY.size
        if rank > dims or name > keys_end:
            return None
        slot, name_len, op_len, dtype_len = _KEY.unpack_from(body, position)
        after_name = name + name_len
        after_op = after_name + op_len
        position = after_op + dtype_len
        if position > keys_end:
            return None
        inline = body[values + offset : values + offset + nbytes] if flags & _INLINE else None
        entries.append(
            IndexEntry(
                _text(body[name:after_name]),
                slot,
                _text(body[after_name:after_op]),
                timestamp,
                _text(body[after_op:position]),
                tuple(shape[:rank]),
                bool(flags & _INITIALIZED),
                bool(flags & _HAS_VALUE),
                -1 if inline is not None else offset,
                nbytes,
                inline,
                next(checksums) if flags & _CHECKED else None,
            )
        )
    return entries if position == keys_end else None


_DECODERS = {_ENTRY_MARKER: _decode_entry, _BLOCK_MARKER: _decode_block}


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogateescape")
