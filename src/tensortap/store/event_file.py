"""Event files, framed as TensorBoard reads them.

A record is its length, a checksum of the length, its bytes and a checksum of them. Numbers are little-endian. A
checksum is a CRC-32C, rotated and shifted by a constant, so that a record which holds checksums of its own has
another one.
"""

from __future__ import annotations

import os
import struct

from tensortap.store.checksum import crc32c

__all__ = ["EventFile"]

_MASK = 0xA282EAD8


class EventFile:
    """A file to which records are appended.

    Args:
        path: of the file, which is made if it does not exist.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "events.out.tfevents.17")
    >>> file = EventFile(path)
    >>> file.write(b"a serialised Event")
    >>> file.close()
    >>> os.path.getsize(path) - len(b"a serialised Event")
    16
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open(path, "ab")  # noqa: SIM115, closed by close()

    def write(self, record: bytes) -> None:
        """Append a record; it may stay in a buffer until `flush`."""
        length = struct.pack("<Q", len(record))
        self._file.write(b"".join((length, _masked_checksum(length), record, _masked_checksum(record))))

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush, and close the file."""
        self._file.close()


def _masked_checksum(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)
