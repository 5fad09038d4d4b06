"""Tensors in and out: fetched values as NumPy arrays, fed values as tensors that fit their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tensortap.engines.torch.memory import in_place_of, is_ordinary, is_plain, readable
from tensortap.errors import FeedError, UnknownTensorError
from tensortap.ops.view import TensorView
from tensortap.records import TensorSpec

__all__ = [
    "as_fed_tensor",
    "dtype_name",
    "plain_shape",
    "shape_of",
    "snapshot",
    "spec_of",
    "specs_of",
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
_COMPRESSED = frozenset([torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
_DTYPE_NAMES: dict[torch.dtype, str] = {}
_SPECS_KEPT = 4096
# Shared, for tensors of a program are alike: each as the outputs of an op that has one.
_specs: dict[tuple[torch.dtype, tuple[int | None, ...]], tuple[TensorSpec]] = {}
_several_specs: dict[tuple[TensorSpec, ...], tuple[TensorSpec, ...]] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Dtype and shape of a live tensor; of a wrapper those of what is read in its place."""
    return _specs_of_one(tensor)[0]


def specs_of(tensors: Sequence[torch.Tensor]) -> tuple[TensorSpec, ...]:
    """The same of all outputs of an op; most often the same object for those that are alike."""
    if len(tensors) == 1:
        return _specs_of_one(tensors[0])
    specs = tuple([_specs_of_one(tensor)[0] for tensor in tensors])
    known = _several_specs.get(specs)
    if known is None:
        if len(_several_specs) >= _SPECS_KEPT:
            _several_specs.clear()
        known = _several_specs[specs] = specs
    return known


def _specs_of_one(tensor: torch.Tensor) -> tuple[TensorSpec]:
    if is_ordinary(tensor):
        try:
            known = _specs.get((tensor.dtype, tensor.shape))
        except (RuntimeError, TypeError):  # a nested tensor has no shape, a symbolic one is no key
            known = None
        if known is not None:
            return known
    seen = in_place_of(tensor)
    dtype, shape = tensor.dtype, shape_of(tensor if seen is None else seen)
    specs = _specs.get((dtype, shape))
    if specs is None:
        if len(_specs) >= _SPECS_KEPT:
            _specs.clear()
        specs = _specs[dtype, shape] = (TensorSpec(dtype_name(dtype), shape),)
    return specs


def shape_of(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """The shape; None for dimensions that are no plain numbers, as those of nested tensors."""
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return plain_shape(tensor.shape)
        except RuntimeError:  # a nested tensor has a different size in every row
            return (None,) * tensor.dim()


def plain_shape(shape: Iterable[Any]) -> tuple[int | None, ...]:
    """Sizes as numbers, or None."""
    sizes = tuple(shape)
    for each in sizes:
        if type(each) is not int:
            return tuple(each if type(each) is int else None for each in sizes)
    return sizes


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the value as it is now, outside autograd, on the tensor's own device; of a wrapper what it wraps.

    Invisible to dispatch modes: our own work is no part of anybody's program.

    Raises:
        UnknownTensorError: the tensor has no value that could be read.
    """
    seen = _seen(tensor)
    with torch._C._DisableTorchDispatch():
        return seen.detach().clone()


def to_numpy(value: Any) -> Any:
    """The NumPy form of a tensor that nobody else will change; anything else passes unchanged.

    Raises:
        UnknownTensorError: the tensor has no value that could be read.
    """
    if not isinstance(value, torch.Tensor):
        return value
    with torch._C._DisableTorchDispatch():
        return _as_numpy(_seen(value).detach())


def _seen(tensor: torch.Tensor) -> torch.Tensor:
    seen = readable(tensor)
    if seen is None:
        raise UnknownTensorError(f"A {type(tensor).__name__} has no value here that could be read.")
    return seen


def _as_numpy(tensor: torch.Tensor) -> Any:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        tensor = tensor.values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
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


def view_of(tensor: torch.Tensor) -> TensorView:
    """The memory of a tensor as debug ops read it, without a copy if it is dense, plain and on the CPU.

    Of a sparse tensor only the values are seen, of a nested one all of them in a row: what is not stored
    cannot be wrong. Of a wrapper what it wraps is seen. The view of a tensor that cannot be read has no value.
    """
    seen = readable(tensor)
    if seen is not None and not is_plain(seen):
        with torch._C._DisableTorchDispatch():
            seen = readable(_made_plain(seen.detach()))
    if seen is None:
        shape = tuple(size for size in shape_of(tensor) if size is not None)
        return TensorView(0, dtype_name(tensor.dtype), shape, (), tensor, has_value=False)
    return TensorView(seen.data_ptr(), dtype_name(seen.dtype), tuple(seen.shape), seen.stride(), seen)


def _made_plain(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        tensor = tensor.values()
    elif tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout in _COMPRESSED:
        tensor = tensor.values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor if tensor.is_meta else tensor.cpu().resolve_conj().resolve_neg()
