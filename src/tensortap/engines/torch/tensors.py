"""PyTorch tensors, as sessions and watches of any engine touch them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensortap.engines.tensors import PlainMemory, Tensors
from tensortap.engines.torch import devices, values
from tensortap.engines.torch.memory import is_plain, readable
from tensortap.engines.torch.program import clean_path
from tensortap.engines.torch.reduce import DeviceSummaries
from tensortap.engines.torch.sparse import coordinates_of
from tensortap.ops.dtypes import CODES
from tensortap.ops.view import TensorView
from tensortap.records import TensorSpec

__all__ = ["TENSORS"]


class TorchTensors(Tensors):
    """Every kind that PyTorch has; wrappers are read through what they wrap."""

    def is_tensor(self, value: Any) -> bool:
        """Whether this is a `torch.Tensor`."""
        return isinstance(value, torch.Tensor)

    def spec_of(self, tensor: torch.Tensor) -> TensorSpec:
        """Dtype and shape."""
        return values.spec_of(tensor)

    def view_of(self, tensor: torch.Tensor) -> TensorView:
        """Its memory, or that of its stored values."""
        return values.view_of(tensor)

    def snapshot(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy, outside autograd."""
        return values.snapshot(tensor)

    def to_numpy(self, value: Any) -> Any:
        """An array over the memory of a tensor."""
        return values.to_numpy(value)

    def as_fed(self, name: str, value: Any, spec: TensorSpec) -> Any:
        """On the host, which is where it can be compared with what it replaces."""
        dtype = getattr(torch, spec.dtype, None)
        if not isinstance(dtype, torch.dtype):
            return value
        return values.as_fed_tensor(name, value, dtype, torch.device("cpu"))

    def device_of(self, tensor: torch.Tensor) -> str:
        """Name of its device."""
        return devices.name_of(tensor.device)

    def readable(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """See `memory.readable`."""
        return readable(tensor)

    def plain_memory(self, tensor: torch.Tensor) -> PlainMemory | None:
        """Its address, if its elements lie in host memory as they are."""
        if not is_plain(tensor):
            return None
        code = CODES.get(values.dtype_name(tensor.dtype))
        return None if code is None else (tensor.data_ptr(), code, tuple(tensor.shape), tensor.stride())

    def coordinates_of(self, tensor: torch.Tensor) -> TensorView | None:
        """Of the stored values of a sparse tensor."""
        return coordinates_of(tensor)

    def is_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Whether it is on an accelerator."""
        return not tensor.is_cpu and not tensor.is_meta

    def remote_summaries(self, lower: float, upper: float) -> DeviceSummaries:
        """Reductions on the device of each tensor."""
        return DeviceSummaries(lower, upper)

    def named(self, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Tensors handed to the step by name; nested ones, in whatever PyTorch can look into, under their path."""
        found: dict[str, torch.Tensor] = {}
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                found[name] = value
                continue
            for path, leaf in pytree.tree_flatten_with_path(value)[0]:
                if isinstance(leaf, torch.Tensor):
                    keys = (
                        str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))
                        for key in path
                    )
                    found["/".join([name, *(clean_path(key) or "_" for key in keys)])] = leaf
        return found

    def detached(self, value: Any) -> Any:
        """Outside autograd."""
        return value.detach() if isinstance(value, torch.Tensor) else value

    def from_numpy(self, value: Any) -> torch.Tensor:
        """An array as a tensor."""
        return torch.as_tensor(value)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Without autograd; and looking at a tensor must not change what the program draws next."""
        generator = torch.get_rng_state()
        try:
            with torch.no_grad():
                yield
        finally:
            torch.set_rng_state(generator)


TENSORS = TorchTensors()
"""They have no state."""
