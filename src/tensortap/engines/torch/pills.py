"""Numeric summaries of tensors in host memory, in batches.

The kernel reads a tensor the moment it is complete. Everything else about its record can wait a little, and done
for many at once it costs a third: between two ops of a model, every line of Python runs with cold caches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from tensortap.engines.torch.values import dtype_name
from tensortap.ops import kernel
from tensortap.ops.debug_ops import DebugNumericSummary, DebugOp
from tensortap.ops.dtypes import CODES
from tensortap.records import Node, Record

if TYPE_CHECKING:
    from tensortap.sink.publisher import Publisher

__all__ = ["Pills", "is_plain"]

BATCH = 128
MAX_AGE_MICROSECONDS = 20_000  # a program that hangs in an op has shown all but the last few tensors
_FIXED = 14
_MAX_RANK = 8
_ROW_BYTES = (_FIXED + _MAX_RANK) * 8


class Pills:
    """The summaries of one run that have been made and not yet handed over."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._native = kernel.native()
        self._rows = np.empty((BATCH, _FIXED + _MAX_RANK))
        self._address = self._rows.ctypes.data
        self._waiting: list[tuple[DebugNumericSummary, tuple[int, ...], Node, int, int]] = []
        self._ranks: list[int] = []

    def add(
        self, wanted: tuple[DebugOp, tuple[int, ...]], node: Node, slot: int, tensor: torch.Tensor
    ) -> bool:
        """Summarise a tensor now; False if this one has to go the ordinary way."""
        op, positions = wanted
        if (
            self._native is None
            or type(op) is not DebugNumericSummary
            or math.isfinite(op.lower_bound)
            or math.isfinite(op.upper_bound)
            or not is_plain(tensor)
        ):
            return False
        code = CODES.get(dtype_name(tensor.dtype))
        shape = tensor.shape
        if code is None or len(shape) > _MAX_RANK:
            return False
        address = tensor.data_ptr()
        if not address and tensor.numel():
            return False
        now = self._publisher.now()
        if self._waiting and now - self._waiting[0][4] > MAX_AGE_MICROSECONDS:
            self.flush()
        place = len(self._waiting)
        row = self._address + place * _ROW_BYTES
        self._native.summary(address, code, tuple(shape), tensor.stride(), -math.inf, math.inf, row)
        self._waiting.append((op, positions, node, slot, now))
        self._ranks.append(len(shape))
        if place + 1 == BATCH:
            self.flush()
        return True

    def flush(self) -> None:
        """Hand over what is waiting."""
        if not self._waiting:
            return
        rows = self._rows[: len(self._waiting)].copy()
        waiting, self._waiting = self._waiting, []
        ranks, self._ranks = self._ranks, []
        for row, rank, (op, positions, node, slot, now) in zip(rows, ranks, waiting, strict=True):
            if op.mute_if_healthy and not (row[2] or row[3] or row[7]):
                self._publisher.hand_over(None, positions)
                continue
            size = _FIXED + rank
            record = Record(node.name, slot, op.name, node.device, now, "float64", (size,), row[:size])
            self._publisher.hand_over(record, positions)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in host memory as they are."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested)
    )
