"""Debug ops: what reduces a live tensor to a record, and the kernels they run on."""

from __future__ import annotations

from tensortap.ops.debug_ops import (
    DebugHash,
    DebugIdentity,
    DebugNanCount,
    DebugNumericSummary,
    DebugOp,
    make_debug_op,
)
from tensortap.ops.view import TensorView

__all__ = [
    "DebugHash",
    "DebugIdentity",
    "DebugNanCount",
    "DebugNumericSummary",
    "DebugOp",
    "TensorView",
    "make_debug_op",
]
