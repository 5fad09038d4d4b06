"""Binary form of the index files of a packed run: pure functions between bytes and entries.

An index file is a header followed by entries. Every entry starts with a marker, its length and a CRC, so a
reader knows where a torn tail begins and can find the next good entry behind damaged bytes. The layout is
described for other programs in `docs/format.md`; numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensortap.errors import TensortapError

__all__ = [
    "ALIGNMENT",
    "INLINE_LIMIT",
    "VERSION",
    "Damage",
    "DumpFormatError",
    "Entry",
    "aligned",
    "decode_header",
    "encode_entry",
    "encode_header",
    "scan_entries",
]

VERSION = 1
"""Version of the packed layout; readers accept this one and every earlier one."""

ALIGNMENT = 64
"""Bytes; a cache line, and what vectorised readers of the mapped values like best."""

INLINE_LIMIT = 512
"""Bytes; smaller values live in the index entry: a health pill then costs one write and is CRC-protected."""

MAX_ENTRY_BYTES = 1 << 20
"""A length above this is damage: it bounds what a corrupt index can make a reader allocate."""

_MAGIC = b"TTAPIDX\n"
_HEADER = struct.Struct("<8sIII")  # magic, version, payload length, CRC of the payload
_FRAME = struct.Struct("<4sII")  # marker, body length, CRC of the body
_MARKER = b"TTr\x01"
# flags, output slot, timestamp, value offset, value bytes, lengths: node name, debug op, dtype, rank
_BODY = struct.Struct("<IiqQQIHHH")

_INITIALIZED, _HAS_VALUE, _INLINE = 1, 2, 4


class DumpFormatError(TensortapError, ValueError):
    """A file of a session directory is damaged, foreign, or newer than this reader."""


class Entry(NamedTuple):
    """One record as the index describes it. A tuple, because a run makes thousands of them.

    Attributes:
        offset: where the value starts in the data file; -1 when it is in `inline`.
        nbytes: size of the stored value.
        inline: the value itself if it is small, else None.
        has_value: False for a tensor without a value.
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


def encode_entry(entry: Entry) -> bytes:
    """One entry with its frame.

    >>> entry = Entry("fc/addmm", 0, "DebugNanCount", 17, "int64", (1,), True, True, -1, 8, bytes(8))
    >>> list(scan_entries(encode_entry(entry))) == [(entry, 0)]
    True
    """
    name = entry.node_name.encode("utf-8", "surrogateescape")
    debug_op = entry.debug_op.encode("utf-8", "surrogateescape")
    dtype = entry.dtype.encode("utf-8", "surrogateescape")
    flags = (
        _INITIALIZED * entry.initialized | _HAS_VALUE * entry.has_value | _INLINE * (entry.inline is not None)
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
            entry.inline or b"",
        )
    )
    if len(body) > MAX_ENTRY_BYTES:
        raise ValueError(
            f"The index entry of {entry.node_name[:80]!r}… takes {len(body)} bytes; the limit is 1 MiB."
        )
    return _FRAME.pack(_MARKER, len(body), zlib.crc32(body)) + body


def scan_entries(buffer: bytes, start: int = 0) -> Iterator[tuple[Entry, int] | Damage]:
    """Every readable entry from `start` with its position, and the damage between and behind them."""
    position = start
    end = len(buffer)
    while position < end:
        found = _entry_at(buffer, position)
        if found is not None:
            entry, following = found
            yield entry, position
            position = following
            continue
        resumed = _next_entry(buffer, position + 1)
        yield Damage(position, (resumed or end) - position, at_end=resumed is None)
        if resumed is None:
            return
        position = resumed


def _next_entry(buffer: bytes, position: int) -> int | None:
    while (position := buffer.find(_MARKER, position)) != -1:
        if _entry_at(buffer, position) is not None:
            return position
        position += 1
    return None


def _entry_at(buffer: bytes, position: int) -> tuple[Entry, int] | None:
    body_start = position + _FRAME.size
    if body_start > len(buffer):
        return None
    marker, length, checksum = _FRAME.unpack_from(buffer, position)
    following = body_start + length
    if marker != _MARKER or length > MAX_ENTRY_BYTES or following > len(buffer):
        return None
    body = buffer[body_start:following]
    if zlib.crc32(body) != checksum:
        return None
    entry = _decode_body(body)
    return None if entry is None else (entry, following)


def _decode_body(body: bytes) -> Entry | None:
    if len(body) < _BODY.size:
        return None
    flags, slot, timestamp, offset, nbytes, name_len, op_len, dtype_len, rank = _BODY.unpack_from(body)
    names = _BODY.size + 8 * rank
    after_name = names + name_len
    after_op = after_name + op_len
    after_dtype = after_op + dtype_len
    if after_dtype > len(body):
        return None
    inline = body[after_dtype:] if flags & _INLINE else None
    return Entry(
        body[names:after_name].decode("utf-8", "surrogateescape"),
        slot,
        body[after_name:after_op].decode("utf-8", "surrogateescape"),
        timestamp,
        body[after_op:after_dtype].decode("utf-8", "surrogateescape"),
        struct.unpack_from(f"<{rank}q", body, _BODY.size),
        bool(flags & _INITIALIZED),
        bool(flags & _HAS_VALUE),
        -1 if inline is not None else offset,
        nbytes,
        inline,
    )
