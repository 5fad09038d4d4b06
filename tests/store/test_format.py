"""The index encoding: round trips, torn tails, damage, foreign bytes."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.errors import DumpFormatError
from tensortap.store import format as fmt
from tensortap.store.format import Damage, IndexEntry

IN_DATA_FILE_OF_VERSION_2 = 3

texts = st.text(max_size=40)
entries = st.builds(
    lambda name, slot, op, time, dtype, shape, initialized, value, offset, checksum: IndexEntry(
        name,
        slot,
        op,
        time,
        dtype,
        tuple(shape),
        initialized,
        value is not None or offset >= 0,
        -1 if value is not None else max(offset, 0),
        len(value) if value is not None else 17,
        value,
        None if value is not None else checksum,
    ),
    texts,
    st.integers(0, 2**31 - 1),
    texts,
    st.integers(0, 2**62),
    texts,
    st.lists(st.integers(0, 2**40), max_size=5),
    st.booleans(),
    st.none() | st.binary(max_size=60),
    st.integers(-1, 2**60),
    st.none() | st.integers(0, 2**32 - 1),  # none in directories of version 2 and before
)


def readable(buffer, start=0):
    return [item[0] for item in fmt.scan_entries(buffer, start) if not isinstance(item, Damage)]


@given(st.lists(entries, max_size=6))
def test_entries_survive(listed):
    assert readable(b"".join(map(fmt.encode_entry, listed))) == listed


@given(st.lists(entries, min_size=1, max_size=5), st.data())
def test_a_torn_tail_is_found_and_everything_before_it_is_read(listed, data):
    whole = [fmt.encode_entry(each) for each in listed]
    cut = data.draw(st.integers(1, len(whole[-1]) - 1))
    buffer = b"".join(whole)[:-cut]
    *good, last = fmt.scan_entries(buffer)
    assert [entry for entry, _ in good] == listed[:-1]
    assert last == Damage(sum(map(len, whole[:-1])), len(whole[-1]) - cut, at_end=True)


@given(st.lists(entries, min_size=3, max_size=5), st.data())
def test_a_flipped_bit_costs_one_entry_at_most(listed, data):
    whole = [fmt.encode_entry(each) for each in listed]
    buffer = bytearray(b"".join(whole))
    place = data.draw(st.integers(0, len(buffer) - 1))
    buffer[place] ^= 1 << data.draw(st.integers(0, 7))
    hit = next(i for i in range(len(whole)) if place < sum(map(len, whole[: i + 1])))
    assert readable(bytes(buffer)) == listed[:hit] + listed[hit + 1 :]


@given(st.binary(max_size=300))
def test_foreign_bytes_never_crash_the_scan(buffer):
    for item in fmt.scan_entries(buffer):
        assert isinstance(item, Damage)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_no_header(buffer):
    with pytest.raises(DumpFormatError):
        fmt.decode_header(buffer)


def test_a_header_is_padded_so_that_entries_start_aligned():
    header = fmt.encode_header({"device": "/device:CPU:0"})
    facts, start = fmt.decode_header(header + b"more")
    assert facts == {"device": "/device:CPU:0"}
    assert start == len(header)
    assert start % fmt.ALIGNMENT == 0


def blocks_of(listed):
    """The entries that a block can hold, in one."""
    rows = np.zeros(len(listed), fmt.block_row(max((len(each.shape) for each in listed), default=0)))
    keys, values = b"", b""
    for place, each in enumerate(listed):
        flags = fmt.IN_BLOCK
        if each.inline is None:
            flags = IN_DATA_FILE_OF_VERSION_2 if each.checksum is None else fmt.IN_DATA_FILE
        offset = each.offset if each.inline is None else len(values)
        rows[place] = (flags, len(each.shape), each.timestamp, offset, each.nbytes, 0)
        rows[place]["dims"][: len(each.shape)] = each.shape
        keys += fmt.encode_key(each.node_name, each.output_slot, each.debug_op, each.dtype)
        values += each.inline or b""
    checksums = [each.checksum for each in listed if each.checksum is not None]
    packed = struct.pack(f"<{len(checksums)}I", *checksums)
    return b"".join(fmt.encode_block(rows, keys, values, packed))


blocks = st.lists(
    entries.map(
        lambda each: each._replace(
            initialized=True, has_value=True, offset=-1 if each.inline is not None else 64
        )
    ),
    max_size=6,
)


@given(blocks, entries, blocks)
def test_blocks_survive_between_entries(before, entry, after):
    buffer = blocks_of(before) + fmt.encode_entry(entry) + blocks_of(after)
    assert readable(buffer) == [*before, entry, *after]


@given(blocks, blocks, st.data())
def test_a_torn_or_damaged_block_costs_its_own_records_only(first, second, data):
    start = len(blocks_of(first))
    buffer = bytearray(blocks_of(first) + blocks_of(second))
    place = data.draw(st.integers(start, len(buffer) - 1))
    assert readable(bytes(buffer[:place])) == first
    buffer[place] ^= 1 << data.draw(st.integers(0, 7))
    assert readable(bytes(buffer) + blocks_of(first)) == first + first


@given(st.binary(max_size=300), st.integers(0, 3), st.integers(0, 70), st.integers(0, 200))
def test_a_block_with_a_valid_checksum_and_foreign_content_is_damage_or_entries(content, count, dims, keys):
    body = struct.pack("<III", count, dims, keys) + content
    frame = b"TTb\x01" + struct.pack("<II", len(body), zlib.crc32(body)) + body
    for item in fmt.scan_entries(frame):
        assert isinstance(item, Damage) or isinstance(item[0], IndexEntry)


def test_a_newer_version_says_so():
    header = bytearray(fmt.encode_header({"device": "d"}))
    header[8:12] = struct.pack("<I", fmt.VERSION + 1)
    with pytest.raises(DumpFormatError, match="newer than this reader"):
        fmt.decode_header(bytes(header))


def test_an_entry_has_a_size_limit():
    entry = IndexEntry("n" * (1 << 20), 0, "Op", 0, "float32", (), True, False, 0, 0)
    with pytest.raises(ValueError, match="1 MiB"):
        fmt.encode_entry(entry)


def test_a_block_under_the_marker_of_an_entry_is_damage():
    """The two markers differ in one bit, which their checksums do not cover."""
    good = IndexEntry("fc/addmm", 0, "DebugNanCount", 17, "int64", (1,), True, True, -1, 8, bytes(8))
    buffer = bytearray(blocks_of([good] * 3))
    place = buffer.index(b"TTb\x01")
    buffer[place : place + 4] = b"TTr\x01"
    assert readable(bytes(buffer) + blocks_of([good])) == [good]
