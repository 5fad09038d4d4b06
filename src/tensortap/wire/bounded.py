"""Reading files that may claim to be of any size: no more than can be meant, and one sentence if it is more."""

from __future__ import annotations

from pathlib import Path

from tensortap.errors import DumpFormatError

__all__ = ["MAX_MESSAGE_BYTES", "read_bounded"]

MAX_MESSAGE_BYTES = (1 << 31) - 1
"""No protobuf message is larger, so no file with one in it is."""

_MARGIN = 1 << 16


def read_bounded(path: Path, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises:
        DumpFormatError: it is larger, or larger than the memory of this machine.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        try:
            size = _size(path)
            # Python makes room for all that is asked for: what may be added meanwhile, not what may be there at most.
            content = file.read(min(limit, size + _MARGIN) + 1) if size <= limit else None
        except MemoryError:
            raise DumpFormatError(f"{path}: {_size(path)} bytes do not fit into memory.") from None
    if content is None or len(content) > limit:
        raise DumpFormatError(f"{path}: {_size(path)} bytes long; what belongs there has at most {limit}.")
    return content


def _size(path: Path) -> int:
    return path.stat().st_size
