"""`tensortap::pill`, the operator that summarises a tensor inside compiled code.

Pure, and content with any memory layout, so that the compiler neither copies a tensor for it nor keeps it from
being fused. Written as torch reductions the same numbers would take several times as long as the step.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tensortap.engines.torch.values import dtype_name
from tensortap.ops import kernel
from tensortap.ops.dtypes import CODES
from tensortap.ops.view import TensorView
from tensortap.pill import PILL_SIZE
from tensortap.records import MAX_BATCH_RANK

__all__ = ["WIDTH", "can_summarise", "pill"]

WIDTH = PILL_SIZE + MAX_BATCH_RANK


def can_summarise(value: object) -> bool:
    """Whether a (fake) value is a tensor that the operator takes: floating point, in host memory."""
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.dim() <= MAX_BATCH_RANK
        and dtype_name(value.dtype) in CODES
    )


def _summarise(tensor: torch.Tensor) -> torch.Tensor:
    row = torch.zeros(WIDTH, dtype=torch.float64)  # zeros: a pure operator makes the same result every time
    dtype, shape, strides = dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride()
    native = kernel.native()
    if native is not None:
        native.summary(tensor.data_ptr(), CODES[dtype], shape, strides, -math.inf, math.inf, row.data_ptr())
    else:
        summary = kernel.summary(TensorView(tensor.data_ptr(), dtype, shape, strides, tensor))
        row[: len(summary)] = torch.from_numpy(summary)
    return row


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(WIDTH, dtype=torch.float64)


_library: Any = torch.library.Library("tensortap", "DEF")  # type: ignore[no-untyped-call]
_library.define("pill(Tensor tensor) -> Tensor", tags=(torch.Tag.flexible_layout,))
_library.impl("pill", _summarise, "CPU")
torch.library.register_fake("tensortap::pill", _fake, lib=_library)

pill = torch.ops.tensortap.pill.default
