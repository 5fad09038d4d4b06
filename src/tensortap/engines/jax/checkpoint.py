"""The state of a session in a file: every array by its path, as NumPy stores them, with the step beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tensortap.engines.jax.tensors import host_array
from tensortap.errors import FailedPreconditionError
from tensortap.ops.dtypes import numpy_dtype

__all__ = ["load_arrays", "save_arrays"]

_INDEX = "tensortap"


def save_arrays(path: Path, step: int, arrays: Mapping[str, Any]) -> None:
    """Write arrays to one file; as bytes, because NumPy's format knows neither bfloat16 nor float8."""
    stored: dict[str, Any] = {}
    index = {}
    for place, (name, leaf) in enumerate(arrays.items()):
        array = host_array(leaf)
        if array is None:
            raise FailedPreconditionError(None, f"{name!r} is not in the memory of this process.")
        index[name] = {"key": f"a{place}", "dtype": array.dtype.name, "shape": list(array.shape)}
        stored[f"a{place}"] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    text = json.dumps({"step": step, "arrays": index})
    with open(path, "wb") as file:
        stored[_INDEX] = np.frombuffer(text.encode(), np.uint8)
        np.savez(file, **stored)


def load_arrays(path: Path, like: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """The step and the arrays of a file, each placed as the one that it replaces.

    Raises:
        FailedPreconditionError: an array is missing, or of another kind.
    """
    found = {}
    with np.load(path) as stored:
        index = json.loads(bytes(stored[_INDEX]))
        for name, leaf in like.items():
            entry = index["arrays"].get(name)
            if entry is None:
                raise FailedPreconditionError(None, f"{path} has no {name!r}.")
            array = stored[entry["key"]].view(numpy_dtype(entry["dtype"])).reshape(entry["shape"])
            found[name] = _placed(name, array, leaf)
    return int(index["step"]), found


def _placed(name: str, array: Any, leaf: Any) -> Any:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=jax.random.key_impl(leaf))
    if array.shape != leaf.shape or array.dtype != leaf.dtype:
        raise FailedPreconditionError(
            None,
            f"{name!r} is {array.dtype.name}{list(array.shape)} in the checkpoint, "
            f"{leaf.dtype}{list(leaf.shape)} here.",
        )
    return jax.device_put(array, leaf.sharding) if isinstance(leaf, jax.Array) else array
