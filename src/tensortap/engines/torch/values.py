"""Tensors in and out: fetched values as NumPy arrays, fed values as tensors that fit their place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tensortap.errors import FeedError
from tensortap.ops.view import TensorView
from tensortap.records import TensorSpec

__all__ = [
    "as_fed_tensor",
    "check_shape",
    "dtype_name",
    "has_data",
    "is_plain",
    "plain_shape",
    "shape_of",
    "snapshot",
    "spec_of",
    "to_numpy",
    "view_of",
]

# NumPy has no name of its own for these; the bits are reinterpreted, so no value is rounded.
_EXTENSION_DTYPES: dict[torch.dtype, tuple[torch.dtype, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: (torch.uint8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: (torch.uint8, ml_dtypes.float8_e5m2fnuz),
}
_DTYPE_NAMES: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Dtype and shape of a live tensor."""
    return TensorSpec(dtype_name(tensor.dtype), shape_of(tensor))


def shape_of(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """The shape; None for dimensions that are no plain numbers, as those of nested tensors."""
    try:
        return plain_shape(tensor.shape)
    except RuntimeError:  # a nested tensor has a different size in every row
        return (None,) * tensor.dim()


def plain_shape(shape: Iterable[Any]) -> tuple[int | None, ...]:
    """Sizes as numbers, or None."""
    return tuple(each if type(each) is int else None for each in shape)


def has_data(tensor: torch.Tensor) -> bool:
    """Whether there is memory behind a tensor: sharded programs free and refill that of their weights."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_nested:
        return True
    nbytes = tensor.untyped_storage().nbytes()
    if nbytes >= tensor.nbytes and not tensor.storage_offset():
        return True
    if tensor.numel() == 0:
        return True
    extent = tensor.storage_offset() + 1
    extent += sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return nbytes >= extent * tensor.element_size()


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the value as it is now, outside autograd, on the tensor's own device.

    Invisible to dispatch modes: our own work is no part of anybody's program.
    """
    with torch._C._DisableTorchDispatch():
        return tensor.detach().clone()


def to_numpy(value: Any) -> Any:
    """The NumPy form of a tensor that nobody else will change; anything else passes unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense() if not tensor.is_nested else tensor.to_padded_tensor(0.0)
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    extension = _EXTENSION_DTYPES.get(tensor.dtype)
    if extension is None:
        array = tensor.numpy()
    else:
        bits, dtype = extension
        array = tensor.contiguous().view(bits).numpy().view(dtype)
    return array[()] if array.ndim == 0 else array


def as_fed_tensor(name: str, value: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`value` as a tensor that can stand in for tensor `name`.

    Python numbers and lists take the dtype they replace; tensors and arrays must already have it, because
    a silent conversion would hide the mistake that is being looked for.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
    elif isinstance(value, (np.ndarray, np.generic)):
        tensor = _from_numpy(np.asarray(value))
    else:
        try:
            tensor = torch.tensor(value, dtype=dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            raise FeedError(f"Cannot feed {name!r} with {value!r}: {error}") from error
    if tensor.dtype != dtype:
        raise FeedError(
            f"Cannot feed {name!r}: it is {dtype_name(dtype)}, the fed value is {dtype_name(tensor.dtype)}. "
            f"Convert the value first, for instance with .to(torch.{dtype_name(dtype)})."
        )
    return tensor.to(device)


def _from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    for dtype, (bits, extension) in _EXTENSION_DTYPES.items():
        if array.dtype == extension:
            plain = np.int16 if bits is torch.int16 else np.uint8
            return torch.from_numpy(np.array(array).view(plain)).view(dtype)
    return torch.from_numpy(np.array(array))


def check_shape(name: str, expected: tuple[int | None, ...], got: tuple[int, ...]) -> None:
    """Refuse a fed value whose shape cannot be the one it replaces (None: any size)."""
    fits = len(expected) == len(got) and all(e in (None, g) for e, g in zip(expected, got, strict=True))
    if not fits:
        shown = "[" + ", ".join("?" if e is None else str(e) for e in expected) + "]"
        raise FeedError(f"Cannot feed {name!r}: its shape is {shown}, the fed value has shape {list(got)}.")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in host memory as they are."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested)
    )


def view_of(tensor: torch.Tensor) -> TensorView:
    """The memory of a tensor as debug ops read it, without a copy if it is dense, plain and on the CPU.

    Of a sparse tensor only the values are seen, of a nested one all of them in a row: what is not stored
    cannot be wrong.
    """
    if not is_plain(tensor):
        tensor = _made_plain(tensor.detach())
    return TensorView(
        tensor.data_ptr(), dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor
    )


def _made_plain(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        tensor = tensor.values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    if tensor.is_meta:
        return tensor  # it has no elements, which a view with address 0 says
    return tensor.cpu().resolve_conj().resolve_neg()
