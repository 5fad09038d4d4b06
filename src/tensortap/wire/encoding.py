"""Protobuf fields as bytes.

A message is the concatenation of its fields. Whoever sends the same names a thousand times a second can
therefore encode them once, and put fresh numbers behind them.
"""

from __future__ import annotations

import struct

__all__ = ["delimited", "double", "header", "varint"]

_ONE_BYTE = [bytes([number]) for number in range(128)]


def varint(number: int) -> bytes:
    """A whole number from 0 on, seven bits per byte.

    >>> varint(300)
    b'\\xac\\x02'
    """
    if number < 128:
        return _ONE_BYTE[number]
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def header(field: int, length: int) -> bytes:
    """What stands before the content of a string, bytes or message field."""
    return varint(field << 3 | 2) + varint(length)


def delimited(field: int, content: bytes) -> bytes:
    """A string, bytes or message field."""
    return header(field, len(content)) + content


def double(field: int, number: float) -> bytes:
    """A field of type double."""
    return varint(field << 3 | 1) + struct.pack("<d", number)
