"""The numeric kernel: native where it was built, NumPy otherwise.

The choice is made once, at the first use. The environment variable TENSORTAP_KERNEL forces it: `native` fails
where there is no native kernel, `numpy` does without it, `auto` (the default) takes the native one if it is
there and otherwise logs, once, that summaries will be slow.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from types import ModuleType
from typing import Any

import numpy as np

from tensortap.errors import FailedPreconditionError, InvalidArgumentError
from tensortap.ops import numpy_kernel
from tensortap.ops.dtypes import CODES, TABLE_DTYPES, number_of, value_table
from tensortap.ops.view import TensorView
from tensortap.pill import PILL_SIZE

__all__ = ["isa", "nan_count", "native", "summary"]

_log = logging.getLogger("tensortap.ops")

# Dimensions the native kernel and NumPy can describe.
_MAX_RANK = 64


@functools.cache
def native() -> ModuleType | None:
    """The native kernel, ready for use, or None if summaries are made with NumPy.

    An engine that makes very many summaries may call `native().summary` itself, with codes from
    `tensortap.ops.dtypes.CODES`; its signature is in `_kernel.pyi`.
    """
    choice = os.environ.get("TENSORTAP_KERNEL", "auto").lower()
    if choice not in ("auto", "native", "numpy"):
        raise InvalidArgumentError(
            None, f"TENSORTAP_KERNEL is {choice!r}; expected 'auto', 'native' or 'numpy'."
        )
    if choice == "numpy":
        return None
    try:
        return _load()
    except ImportError as error:
        if choice == "native":
            raise FailedPreconditionError(
                None, f"TENSORTAP_KERNEL asks for the native kernel, which does not load: {error}"
            ) from error
        _log.warning(
            "The native kernel is not available (%s). Numeric summaries use NumPy, which takes tens of times "
            "longer; install tensortap where there is a C compiler, or accept it: TENSORTAP_KERNEL=numpy.",
            error,
        )
        return None


def _load() -> ModuleType:
    from tensortap.ops import _kernel

    if CODES[TABLE_DTYPES[0]] != _kernel.TABLE:
        raise ImportError("it was built from another version of its source")
    for name, code in CODES.items():
        _kernel.configure(code, number_of(name), value_table(name) if name in TABLE_DTYPES else None)
    return _kernel


def isa() -> str:
    """What makes the summaries, for diagnostics: `avx512`, `avx2`, `portable` (all native) or `numpy`."""
    loaded = native()
    return "numpy" if loaded is None else str(loaded.isa())


def summary(
    tensor: TensorView | np.ndarray[Any, Any], lower: float = -math.inf, upper: float = math.inf
) -> np.ndarray[Any, Any]:
    """The numeric summary: 14 + rank float64, laid out as `DebugNumericSummary` describes.

    Args:
        tensor: what to summarise.
        lower: finite elements up to here are counted with -inf; infinite or NaN for no bound.
        upper: finite elements from here on are counted with +inf; infinite or NaN for no bound.

    >>> summary(np.array([-1.0, 0.0, 3.0], np.float32))[:12].tolist()
    [1.0, 3.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, -1.0, 3.0, 0.666..., 2.888...]
    """
    view = TensorView.of_numpy(tensor) if isinstance(tensor, np.ndarray) else tensor
    rank = len(view.shape)
    if not view.has_value or rank > _MAX_RANK:
        return numpy_kernel.unread_summary(view)
    loaded, code = native(), CODES.get(view.dtype)
    if loaded is None or code is None:
        return numpy_kernel.summary(view, lower, upper)
    row = np.empty(PILL_SIZE + rank)
    loaded.summary(view.address, code, view.shape, view.strides, lower, upper, row)
    return row


def nan_count(tensor: TensorView | np.ndarray[Any, Any]) -> int:
    """The number of NaN elements; a complex element is NaN if either part is.

    >>> nan_count(np.array([1.0, np.nan]))
    1
    """
    view = TensorView.of_numpy(tensor) if isinstance(tensor, np.ndarray) else tensor
    if not view.has_value or len(view.shape) > _MAX_RANK:
        return 0
    loaded, code = native(), CODES.get(view.dtype)
    if loaded is None or code is None:
        return numpy_kernel.nan_count(view)
    return int(loaded.nan_count(view.address, code, view.shape, view.strides))
