"""Numeric summaries of tensors that are not in host memory, made where they are.

1. `add` queues the reductions of one tensor on its device. Nothing waits and nothing is copied, so the
   program's own kernels keep the device busy; work on one stream is ordered, so later in-place changes do
   not matter.
2. `collect`, once per run, stacks the results of a device in one buffer and copies it to the host.

The numbers are those of the kernel (`tensortap.ops`): counts, minimum and maximum the same, mean and variance
to rounding, unless squares overflow. Devices without float64 (MPS) reduce in float32, with its precision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tensortap.engines.torch.values import dtype_name
from tensortap.ops.dtypes import in_precision_of, number_of
from tensortap.pill import (
    COUNTS,
    DTYPE,
    ELEMENTS,
    INITIALIZED,
    MAX,
    MEAN,
    MIN,
    NO_STATISTICS,
    PILL_SIZE,
    RANK,
    STATISTICS,
    VARIANCE,
)

__all__ = ["DeviceSummaries"]

_WITHOUT_FLOAT64 = {"mps"}
# Elements reduced at once: bounds the working copies on the device to a few hundred megabytes.
_CHUNK = 1 << 24


class DeviceSummaries:
    """Collects the numeric summaries of a run, and brings them to the host in one copy per device.

    Args:
        lower: as in `DebugNumericSummary`.
        upper: likewise.

    >>> summaries = DeviceSummaries()
    >>> summaries.add(torch.tensor([1.0, float("nan"), -3.0]))
    0
    >>> summaries.collect()[0, :10].tolist()
    [1.0, 3.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, -3.0, 1.0]
    """

    def __init__(self, lower: float = -math.inf, upper: float = math.inf) -> None:
        self._bounds = (
            lower if math.isfinite(lower) else -math.inf,
            upper if math.isfinite(upper) else math.inf,
        )
        self._known: list[list[float]] = []
        self._shapes: list[tuple[int, ...]] = []
        self._repeats: list[int] = []
        self._queued: dict[torch.device, tuple[list[int], list[torch.Tensor]]] = {}

    def __len__(self) -> int:
        """How many tensors were added since the last `collect`."""
        return len(self._known)

    @torch.no_grad()
    def add(self, tensor: torch.Tensor) -> int:
        """Queue the reductions of one tensor; gives the row its summary will have.

        Call it outside any dispatch mode that watches operations, or in the handler of one.
        """
        index = len(self._known)
        initialized = _has_memory(tensor)
        count = tensor.numel()
        name = dtype_name(tensor.dtype)
        shown = float(count) if initialized else 0.0
        self._known.append([float(initialized), shown, number_of(name), float(tensor.dim())])
        self._repeats.append(1)
        self._shapes.append(tuple(tensor.shape))
        if initialized and count:
            values = _real_values(tensor.detach())
            if values is not None:
                values, self._repeats[index] = _without_broadcasting(values)
                lower, upper = (in_precision_of(name, bound) for bound in self._bounds)
                partial = _reduce(values, lower, upper)
                rows, partials = self._queued.setdefault(partial.device, ([], []))
                rows.append(index)
                partials.append(partial)
        return index

    @torch.no_grad()
    def collect(self) -> np.ndarray[Any, Any]:
        """The summaries without their dimensions, float64[tensors, 14], as added; and start over."""
        table = np.zeros((len(self._known), PILL_SIZE))
        table[:, STATISTICS] = NO_STATISTICS
        if self._known:
            table[:, [INITIALIZED, ELEMENTS, DTYPE, RANK]] = self._known
        for rows, partials in self._queued.values():
            found = torch.stack(partials).cpu().numpy()
            table[rows, COUNTS] = found[:, :6] * np.array(self._repeats, np.float64)[rows, None]
            table[rows, MIN : MAX + 1] = found[:, 7:9]
            with np.errstate(invalid="ignore"):
                table[rows, MEAN] = np.where(found[:, 6] > 0, found[:, 9], np.nan)
                table[rows, VARIANCE] = found[:, 10] / found[:, 6]
        self._known, self._shapes, self._repeats, self._queued = [], [], [], {}
        return table

    def collect_rows(self) -> list[np.ndarray[Any, Any]]:
        """Like `collect`, each summary with its dimensions: float64[14 + rank]."""
        shapes = self._shapes
        return [
            np.concatenate([row, np.array(shape, np.float64)])
            for row, shape in zip(self.collect(), shapes, strict=True)
        ]


def _reduce(values: torch.Tensor, lower: float, upper: float) -> torch.Tensor:
    flat = values.reshape(-1)
    if flat.numel() <= _CHUNK:
        return _reduce_chunk(flat, lower, upper)
    chunks = (flat[start : start + _CHUNK] for start in range(0, flat.numel(), _CHUNK))
    return _merged(torch.stack([_reduce_chunk(chunk, lower, upper) for chunk in chunks]))


def _reduce_chunk(values: torch.Tensor, lower: float, upper: float) -> torch.Tensor:
    """The counts of a pill, then of the finite elements: number, minimum, maximum, mean, squares around the mean."""
    wide = torch.float32 if values.device.type in _WITHOUT_FLOAT64 else torch.float64
    values = values.to(wide)
    finite = values.isfinite()
    low = values <= lower
    high = (values >= upper) & ~low
    inside = ~(low | high)
    counts = [
        values.isnan(),
        low,
        inside & (values < 0),
        inside & (values == 0),
        inside & (values > 0),
        high,
        finite,
    ]
    sums = torch.stack(counts).sum(1).to(wide)
    # Adding 0.0 makes one zero of -0.0 and 0.0, which are equal.
    minimum = torch.where(finite, values, math.inf).amin() + 0.0
    maximum = torch.where(finite, values, -math.inf).amax() + 0.0
    # Around the minimum first, so that a large common offset does not cost digits of the mean.
    number = sums[6]
    offset = torch.where(finite, values - minimum, 0.0)
    mean = minimum + offset.sum() / number
    squares = torch.where(finite, (values - mean).square(), 0.0).sum()
    return torch.cat([sums, torch.stack([minimum, maximum, mean, squares])])


def _merged(parts: torch.Tensor) -> torch.Tensor:
    """One partial result of several, on their device."""
    number, mean, squares = parts[:, 6], parts[:, 9], parts[:, 10]
    some = number > 0
    mean = torch.where(some, mean, 0.0)
    total = number.sum()
    overall = (mean * (number / total)).sum()
    spread = squares + number * (mean - overall).square()
    return torch.stack(
        [
            *parts[:, :6].sum(0).unbind(),
            total,
            parts[:, 7].amin(),
            parts[:, 8].amax(),
            overall,
            torch.where(some, spread, 0.0).sum(),
        ]
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    """False for a tensor that has elements, but whose storage was released or never allocated."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.numel() == 0:
        return True
    try:
        return tensor.untyped_storage().nbytes() > 0
    except (NotImplementedError, RuntimeError):  # a wrapper that has no storage of its own
        return True


def _without_broadcasting(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """One of each repeated element, and how often each occurs."""
    repeat = 1
    for dim in reversed(range(tensor.dim())):
        if tensor.stride(dim) == 0 and tensor.size(dim) > 1:
            repeat *= tensor.size(dim)
            tensor = tensor.select(dim, 0)
    return tensor, repeat


def _real_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """Something real that `.to(float64)` works on: magnitudes of complex numbers; None for packed types."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        tensor = tensor.values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype.is_complex:
        wide = torch.complex64 if tensor.device.type in _WITHOUT_FLOAT64 else torch.complex128
        parts = tensor.to(wide)
        return torch.where(parts.isnan(), math.nan, parts.abs())
    return None if dtype_name(tensor.dtype) not in _REDUCIBLE else tensor


# Types whose elements PyTorch converts one by one; packed and placeholder types are not among them.
_REDUCIBLE = {
    "bfloat16",
    "bool",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
}
