"""What can be done with an array of JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tensortap.engines.jax.paths import named_leaves
from tensortap.engines.tensors import Tensors
from tensortap.errors import FeedError
from tensortap.ops.view import TensorView
from tensortap.records import TensorSpec, device_name

__all__ = ["TENSORS", "JaxTensors", "host_array", "is_shared"]


def host_array(array: Any) -> np.ndarray[Any, Any] | None:
    """The elements in host memory, without a copy where possible; None if this process cannot read them."""
    if not isinstance(array, jax.Array):  # of NumPy, or a plain number
        return np.asarray(array)
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(array))
    if array.is_deleted() or not (array.is_fully_addressable or array.is_fully_replicated):
        return None
    return np.asarray(array)


def is_shared(arrays: Sequence[Any]) -> bool:
    """Whether any of these lies in several processes."""
    return any(isinstance(each, jax.Array) and not each.is_fully_addressable for each in arrays)


class JaxTensors(Tensors):
    """Arrays of JAX, which nobody can change, and those of NumPy that stand in for them."""

    def is_tensor(self, value: Any) -> bool:
        """Whether this is an array, and no tracer."""
        if isinstance(value, jax.core.Tracer):
            return False
        return isinstance(value, (jax.Array, np.ndarray, np.generic))

    def spec_of(self, tensor: Any) -> TensorSpec:
        """Dtype and shape."""
        return TensorSpec(str(getattr(tensor.dtype, "name", tensor.dtype)), tuple(tensor.shape))

    def view_of(self, tensor: Any) -> TensorView:
        """The elements in host memory; a view without a value for what other processes hold."""
        found = host_array(tensor)
        if found is None:
            spec = self.spec_of(tensor)
            shape = tuple(d or 0 for d in spec.shape)
            return TensorView(0, spec.dtype, shape, (0,) * len(shape))
        return TensorView.of_numpy(found)

    def snapshot(self, tensor: Any) -> Any:
        """A copy on the host."""
        found = host_array(tensor)
        return tensor if found is None else np.array(found)

    def to_numpy(self, value: Any) -> Any:
        """A NumPy array; of a scalar, a NumPy number."""
        if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
            value = np.array(host_array(value))
        return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value

    def as_fed(self, name: str, value: Any, spec: TensorSpec) -> Any:
        """A fed value as an array of the dtype it replaces."""
        if not self.is_tensor(value):
            return np.asarray(value, jax.numpy.dtype(spec.dtype))
        given = self.spec_of(value).dtype
        array = np.asarray(host_array(value))
        if isinstance(value, (np.ndarray, np.generic)):
            # What JAX itself makes of it when it is handed in: float32 of float64, unless x64 is on.
            array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
        if array.dtype.name != spec.dtype:
            raise FeedError(f"Cannot feed {name!r}: it is {spec.dtype}, the fed value is {given}.")
        return array

    def device_of(self, tensor: Any) -> str:
        """The first device an array is on."""
        devices = getattr(tensor, "devices", None)
        if devices is None:
            return device_name("cpu")
        device = min(devices(), key=lambda each: each.id)
        return device_name(device.platform, device.id, rank=device.process_index)

    def readable(self, tensor: Any) -> Any | None:
        """The array, unless it was given away or lies in other processes."""
        if isinstance(tensor, jax.Array):
            if tensor.is_deleted() or not (tensor.is_fully_addressable or tensor.is_fully_replicated):
                return None
            if jax.dtypes.issubdtype(tensor.dtype, jax.dtypes.prng_key):
                return None
        return tensor

    def named(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays among the arguments of a step, nested ones by their path."""
        return {name: leaf for name, leaf in named_leaves(arguments) if self.is_tensor(leaf)}

    def from_numpy(self, value: Any) -> Any:
        """An array of JAX."""
        return jax.numpy.asarray(value)


TENSORS = JaxTensors()
