"""What one debug op made of one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensortap.records.node import tensor_name

__all__ = ["Record"]


@dataclass(frozen=True, slots=True)
class Record:
    """What one debug op made of one tensor.

    Attributes:
        debug_op: name of the debug op without its attributes, such as `DebugIdentity`.
        device: full device name.
        timestamp: microseconds since the epoch at which the tensor was complete.
        dtype: of the record's own value, as NumPy or ml_dtypes spell it, or `string`.
        shape: of the record's own value.
        data: the value: C-contiguous little-endian bytes, anything that supports the buffer protocol; for
            `string` a list of bytes, one per element; None for a tensor without a value.
        initialized: False for a tensor that had no value yet.

    >>> record = Record("fc/addmm", 0, "DebugNanCount", "", 1, "int64", (1,), bytes(8))
    >>> record.watch_key, record.nbytes
    ('fc/addmm:0:DebugNanCount', 8)
    """

    node_name: str
    output_slot: int
    debug_op: str
    device: str
    timestamp: int
    dtype: str
    shape: tuple[int, ...]
    data: Any
    initialized: bool = True

    @property
    def tensor_name(self) -> str:
        """The tensor this is about."""
        return tensor_name(self.node_name, self.output_slot)

    @property
    def watch_key(self) -> str:
        """Tensor and debug op."""
        return f"{self.tensor_name}:{self.debug_op}"

    @property
    def nbytes(self) -> int:
        """Size of the value."""
        if self.data is None:
            return 0
        return sum(map(len, self.data)) if self.dtype == "string" else memoryview(self.data).nbytes
