"""Checksums of stored values, by name: the header of an index says which one its values have.

Where `native/crc32c.c` was built, values get a `crc32c`, made by the processor's instruction without the GIL. Elsewhere
they get zlib's `crc32`, and a `crc32c` is checked with NumPy: slowly, but checked. NumPy takes the bytes as many
lanes side by side, two bytes of each at a time, and joins the lanes afterwards: a CRC is linear, so that of two
pieces is that of the first, moved on over the length of the second, xor that of the second.

The environment variable TENSORTAP_KERNEL=numpy does without C here, too.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ALGORITHMS", "checksums", "crc32c", "isa", "preferred"]

_POLYNOMIAL = 0x82F63B78
_CHUNK = 1 << 24
"""Bytes that NumPy takes at once; it copies them."""
_LANES = 1 << 12
_SMALL = 1 << 15
"""Bytes up to which a plain loop is faster than NumPy."""

Words = npt.NDArray[np.uint32]


@functools.cache
def _native() -> ModuleType | None:
    if os.environ.get("TENSORTAP_KERNEL", "auto").lower() == "numpy":
        return None
    try:
        from tensortap.store import _crc32c
    except ImportError:
        return None
    return _crc32c


def isa() -> str:
    """What makes a `crc32c`, for diagnostics: `sse4.2`, `portable` (both native) or `numpy`."""
    loaded = _native()
    return "numpy" if loaded is None else str(loaded.isa())


def preferred() -> str:
    """The name of the checksum that is quick here."""
    return "crc32" if _native() is None else "crc32c"


def crc32c(buffer: Any) -> int:
    """The CRC-32C of the bytes of a buffer.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    loaded = _native()
    return loaded.crc32c(buffer) if loaded is not None else _crc32c_of(np.frombuffer(buffer, np.uint8))


ALGORITHMS: dict[str, Callable[[Any], int]] = {"crc32c": crc32c, "crc32": zlib.crc32}
"""By the name that the header of an index has for it."""


def checksums(
    algorithm: str, memory: Any, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> Words:
    """The checksum of every stretch of a buffer.

    >>> checksums("crc32c", b"123456789", np.array([0, 9]), np.array([9, 0])).tolist() == [0xE3069283, 0]
    True
    """
    found = np.empty(len(offsets), np.uint32)
    loaded = _native()
    if algorithm == "crc32c" and loaded is not None:
        places = [np.ascontiguousarray(each, np.int64) for each in (offsets, sizes)]
        loaded.each(memory, *places, found)
        return found
    view, make = memoryview(memory), ALGORITHMS[algorithm]
    for place, (start, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
        found[place] = make(view[start : start + size])
    return found


# --- without C --------------------------------------------------------------------------------------


def _crc32c_of(data: npt.NDArray[np.uint8]) -> int:
    crc = 0xFFFFFFFF
    if len(data) <= _SMALL:
        table = _one_byte_table()
        for byte in data.tobytes():
            crc = crc >> 8 ^ table[crc & 0xFF ^ byte]
        return crc ^ 0xFFFFFFFF
    for start in range(0, len(data), _CHUNK):
        chunk = data[start : start + _CHUNK]
        crc = _moved(crc, len(chunk)) ^ _of_lanes(chunk)
    return crc ^ 0xFFFFFFFF


def _of_lanes(data: npt.NDArray[np.uint8]) -> int:
    """The CRC of the bytes from a register of zero, for which leading zeros change nothing."""
    columns = -(-len(data) // (2 * _LANES))
    padded = np.zeros(_LANES * columns * 2, np.uint8)
    padded[len(padded) - len(data) :] = data
    words = np.ascontiguousarray(padded.view("<u2").reshape(_LANES, columns).T).astype(np.uint32)
    table = _two_byte_table()
    crcs = np.zeros(_LANES, np.uint32)
    for column in words:
        crcs = table[(crcs ^ column) & 0xFFFF] ^ (crcs >> 16)
    size = 2 * columns
    while len(crcs) > 1:
        crcs = _moved_all(crcs[0::2], size) ^ crcs[1::2]
        size *= 2
    return int(crcs[0])


@functools.cache
def _two_byte_table() -> Words:
    """What a register becomes after two bytes, by its lower half."""
    return _after_zero_bits(np.arange(1 << 16, dtype=np.uint32), 16)


@functools.cache
def _one_byte_table() -> list[int]:
    found: list[int] = _after_zero_bits(np.arange(256, dtype=np.uint32), 8).tolist()
    return found


def _after_zero_bits(crcs: Words, bits: int) -> Words:
    for _ in range(bits):
        crcs = np.where(crcs & 1, crcs >> 1 ^ np.uint32(_POLYNOMIAL), crcs >> 1).astype(np.uint32)
    return crcs


def _moved(crc: int, size: int) -> int:
    return int(_moved_all(np.array([crc], np.uint32), size)[0])


def _moved_all(crcs: Words, size: int) -> Words:
    """What registers become when `size` zero bytes follow."""
    for power in range(size.bit_length()):
        if size >> power & 1:
            matrix = _zeros(power)
            moved = np.zeros_like(crcs)
            for bit in range(32):
                moved ^= np.where(crcs >> np.uint32(bit) & 1, matrix[bit], np.uint32(0))
            crcs = moved
    return crcs


@functools.cache
def _zeros(power: int) -> Words:
    """What each bit of a register becomes when 2 ** power zero bytes follow."""
    if power:
        return _moved_all(_zeros(power - 1), 1 << power - 1)
    return _after_zero_bits(np.uint32(1) << np.arange(32, dtype=np.uint32), 8)
