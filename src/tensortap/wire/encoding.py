"""Protobuf fields as bytes.

A message is the concatenation of its fields. Whoever sends the same names a thousand times a second can
therefore encode them once, and put fresh numbers behind them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

__all__ = ["delimited", "double", "find_field", "header", "varint"]

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


def find_field(message: bytes, path: Sequence[int]) -> memoryview | None:
    """The content of a nested field in place, without a copy: the first one that the field numbers lead to.

    Returns:
        None if there is none, or the message is not well formed.

    >>> bytes(find_field(delimited(5, double(1, 0.5) + delimited(8, b"value")), (5, 8)))
    b'value'
    """
    position, end = 0, len(message)
    try:
        for wanted in path:
            while True:
                tag, position = _read_varint(message, position, end)
                kind = tag & 7
                if kind == 2:
                    length, position = _read_varint(message, position, end)
                    if position + length > end:
                        return None
                    if tag >> 3 == wanted:
                        end = position + length
                        break
                    position += length
                elif kind == 0:
                    _, position = _read_varint(message, position, end)
                elif kind in (1, 5):
                    position += 8 if kind == 1 else 4
                else:
                    return None
    except IndexError:
        return None
    return memoryview(message)[position:end]


def _read_varint(message: bytes, position: int, end: int) -> tuple[int, int]:
    """A number and what is behind it; IndexError if it is cut off."""
    number = shift = 0
    while shift < 64:
        if position >= end:
            raise IndexError(position)
        byte = message[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
        shift += 7
    raise IndexError(position)
