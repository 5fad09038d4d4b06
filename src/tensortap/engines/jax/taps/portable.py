"""Taps where foreign functions cannot be called: JAX's own callbacks tell the host.

On several devices of the CPU they hand over the tensor, on other platforms a summary in JAX's own operations. Slower;
the records are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from tensortap.engines.jax.taps.kinds import VALUE
from tensortap.engines.jax.taps.library import MOST_RECORDS, Taken
from tensortap.ops import kernel
from tensortap.ops.dtypes import number_of
from tensortap.pill import PILL_SIZE

__all__ = ["bad_kinds", "comes_in_parts", "fed", "reporter", "store", "take"]

_WIDTH = PILL_SIZE + 8
_lock = threading.Lock()
_records: list[tuple[int, npt.NDArray[Any], npt.NDArray[Any] | None]] = []
_is_used = False
_fed: dict[int, npt.NDArray[Any]] = {}


def reporter(number: int, kind: int, on_host: bool, in_parts: bool) -> Callable[[Any], None]:
    """A function of a tensor that has its health, and if wanted its value, noted on the host.

    Args:
        number: of the tap.
        kind: what it takes.
        on_host: the health is worked out on the host, by the native kernel, where the tensor is at hand; elsewhere by
            JAX's own operations, on the device.
        in_parts: the tensor is spread over devices, and each tells of its part. A whole value is brought together.
    """

    global _is_used
    _is_used = True
    keeps = kind == VALUE

    def note(row: Any, value: Any = None) -> None:
        with _lock:
            if len(_records) < MOST_RECORDS:
                _records.append((number, np.asarray(row), None if value is None else np.array(value)))

    def note_tensor(value: Any) -> None:
        array = np.asarray(value)
        note(kernel.summary(array), array if keeps else None)

    def report(tensor: Any) -> None:
        if on_host:
            jax.debug.callback(
                note_tensor, tensor, partitioned=in_parts and comes_in_parts(kind, tensor.shape)
            )
        else:
            row = _summary(tensor)
            jax.debug.callback(note, *((row, tensor) if keeps else (row,)))

    return report


def comes_in_parts(kind: int, shape: Sequence[Any]) -> bool:
    """Whether a tap in a program that is spread over devices has a record for each of them."""
    return kind != VALUE or not shape


def take() -> Taken:
    """Take all records that have been made."""
    if _is_used:
        jax.effects_barrier()
    with _lock:
        taken, _records[:] = _records[:], []
    numbers = np.array([number for number, _, _ in taken], np.int64)
    rows = np.zeros((len(taken), _WIDTH))
    values: list[bytes | None] = []
    for place, (_, row, value) in enumerate(taken):
        rows[place, : len(row)] = row[:_WIDTH]
        values.append(None if value is None else np.ascontiguousarray(value).tobytes())
    return Taken(numbers, rows, values)


def store(number: int, value: npt.NDArray[Any]) -> None:
    """Have a feed give this value from now on."""
    _fed[number] = value


def fed(number: int, aval: Any) -> Any:
    """What was stored under a number."""
    shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    return jax.pure_callback(lambda: _fed[number], shape)


def bad_kinds(*arrays: Any) -> Any:
    """Which kinds of bad values each of these has, as one byte each."""
    return jnp.stack([_kinds(each) for each in arrays])


def _kinds(tensor: Any) -> Any:
    numbers = _real(tensor)
    nan, low, high = jnp.isnan(numbers).any(), (numbers == -jnp.inf).any(), (numbers == jnp.inf).any()
    return (nan * 1 + low * 2 + high * 4).astype(jnp.uint8)


def _real(tensor: Any) -> Any:
    if jnp.issubdtype(tensor.dtype, jnp.complexfloating):
        tensor = jnp.abs(tensor)
    if tensor.dtype == jnp.float64:
        return tensor
    return tensor.astype(jnp.float32)


def _summary(tensor: Any) -> Any:
    """The health pill of a tensor."""
    x = _real(tensor).reshape(-1)
    finite = jnp.isfinite(x)
    count = finite.sum()
    safe = jnp.where(finite, x, 0)
    mean = safe.sum() / jnp.maximum(count, 1)
    variance = jnp.where(finite, (x - mean) ** 2, 0).sum() / jnp.maximum(count, 1)
    columns = [
        1,
        x.size,
        jnp.isnan(x).sum(),
        (x == -jnp.inf).sum(),
        (finite & (x < 0)).sum(),
        (x == 0).sum(),
        (finite & (x > 0)).sum(),
        (x == jnp.inf).sum(),
        jnp.where(finite, x, jnp.inf).min(initial=jnp.inf),
        jnp.where(finite, x, -jnp.inf).max(initial=-jnp.inf),
        jnp.where(count > 0, mean, jnp.nan),
        jnp.where(count > 0, variance, jnp.nan),
        number_of(tensor.dtype.name),
        tensor.ndim,
        *tensor.shape[:8],
    ]
    return jnp.stack([jnp.asarray(each, x.dtype) for each in columns])
