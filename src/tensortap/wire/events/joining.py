"""Puts the chunks of something together again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensortap.wire.debug_service import WireError

__all__ = ["Joiner"]


@dataclass
class _Chunks:
    count: int
    parts: dict[int, Any] = field(default_factory=dict)
    nbytes: int = 0


class Joiner:
    """Holds the chunks of what is not complete.

    Args:
        max_bytes: how much may wait for missing chunks.
        max_pending: how many incomplete things may.
    """

    def __init__(self, max_bytes: int = 1 << 30, max_pending: int = 1000) -> None:
        self._max_bytes = max_bytes
        self._max_pending = max_pending
        self._pending: dict[object, _Chunks] = {}
        self.pending_bytes = 0

    def join(self, key: object, index: int, count: int, part: Any, nbytes: int) -> list[Any] | None:
        """All parts in order, once the last of them has come."""
        if not 0 <= index < count:
            raise WireError(f"Chunk {index} of {count} cannot be.")
        chunks = self._pending.get(key)
        if chunks is None:
            if len(self._pending) >= self._max_pending:
                raise WireError(f"More than {self._max_pending} things wait for missing chunks.")
            chunks = self._pending[key] = _Chunks(count)
        if chunks.count != count or index in chunks.parts:
            raise WireError(f"Chunk {index} of {count} contradicts an earlier one.")
        if self.pending_bytes + nbytes > self._max_bytes:
            raise WireError(f"More than {self._max_bytes} bytes wait for missing chunks.")
        chunks.parts[index] = part
        chunks.nbytes += nbytes
        self.pending_bytes += nbytes
        if len(chunks.parts) < count:
            return None
        del self._pending[key]
        self.pending_bytes -= chunks.nbytes
        return [chunks.parts[place] for place in range(count)]
