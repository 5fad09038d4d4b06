"""The variables of a session: read and written without an op being added to the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tensortap.dtypes import numpy_dtype
from tensortap.engines.tensors import check_shape
from tensortap.errors import CheckpointError, FeedError
from tensortap.seam.base import NonFinite

__all__ = ["Variables"]

_v1 = tf.compat.v1
_COUNTED = "counted steps"


class Variables:
    """The variables of a session.

    Args:
        session: our session; its `tf_session` may be another one after a recovery.
    """

    def __init__(self, session: Any) -> None:
        self._owner = session

    @property
    def _session(self) -> Any:
        return self._owner.tf_session

    def all(self) -> dict[str, Any]:
        """By tensor name."""
        keys = _v1.GraphKeys
        graph = self._session.graph
        found = [*graph.get_collection(keys.GLOBAL_VARIABLES), *graph.get_collection(keys.LOCAL_VARIABLES)]
        return {each.name: each for each in found}

    def trainable(self) -> set[str]:
        """Names of those that are trained."""
        return {each.name for each in self._session.graph.get_collection(_v1.GraphKeys.TRAINABLE_VARIABLES)}

    def write(self, values: Mapping[str, Any]) -> None:
        """Give variables values, through what initialises them: nothing is added to the graph."""
        variables = self.all()
        for name, value in values.items():
            initializer = variables[name].initializer
            self._session.run(initializer, {initializer.inputs[1]: value})

    @contextmanager
    def fed(self, feeds: Mapping[str, Any]) -> Iterator[None]:
        """Give variables other values inside the block."""
        if not feeds:
            yield
            return
        variables = self.all()
        fitted = {}
        for name, value in feeds.items():
            variable = variables[name]
            dtype = variable.dtype.base_dtype.as_numpy_dtype
            if isinstance(value, np.ndarray) and value.dtype != dtype:
                raise FeedError(
                    f"Cannot feed {name!r}: it is {np.dtype(dtype).name}, the fed value is {value.dtype.name}."
                )
            fitted[name] = np.asarray(value, dtype)
            check_shape(name, tuple(variable.shape.as_list()), fitted[name].shape)
        old = self._session.run({name: variables[name] for name in feeds})
        self.write(fitted)
        try:
            yield
        finally:
            self.write(old)

    def save(self, path: Path, steps: int) -> None:
        """Write all global variables to one file."""
        names = [each.name for each in self._session.graph.get_collection(_v1.GraphKeys.GLOBAL_VARIABLES)]
        variables = self.all()
        values = self._session.run({name: variables[name] for name in names})
        stored: dict[str, Any] = {_COUNTED: np.asarray(steps)}
        for name, value in values.items():
            stored[f"value {name}"] = _plain(np.asarray(value))
            stored[f"dtype {name}"] = np.asarray(np.asarray(value).dtype.name)
        with open(path, "wb") as file:
            np.savez(file, **stored)

    def load(self, path: Path) -> int:
        """Put the values of a file in place; the steps that were counted when it was written.

        Raises:
            CheckpointError: variables of the graph are not in it.
        """
        names = [each.name for each in self._session.graph.get_collection(_v1.GraphKeys.GLOBAL_VARIABLES)]
        with np.load(path) as stored:
            missing = [name for name in names if f"value {name}" not in stored]
            if missing:
                raise CheckpointError(f"The checkpoint {path} holds no {', '.join(missing)}.")
            self.write(
                {name: _of_dtype(stored[f"value {name}"], str(stored[f"dtype {name}"])) for name in names}
            )
            return int(stored[_COUNTED])

    def non_finite(self) -> Iterator[NonFinite]:
        """Those that hold NaN or infinities."""
        variables = {
            name: each
            for name, each in self.all().items()
            if each.dtype.base_dtype.is_floating or each.dtype.base_dtype.is_complex
        }
        slots, trained = self._slots(), self.trainable()
        for name, value in self._session.run(variables).items():
            wide = value if value.dtype.kind in "fc" else value.astype(np.float32)  # bfloat16 and the like
            if not np.isfinite(wide).all():
                kind = "optimizer state" if name in slots else "parameter" if name in trained else "buffer"
                yield NonFinite(name.removesuffix(":0"), kind, bool(np.isnan(wide).any()))  # type: ignore[arg-type]

    def _slots(self) -> set[str]:
        """What an optimizer keeps beside a variable is named after it: `model/weight/Adam`."""
        trained = [name.removesuffix(":0") + "/" for name in self.trainable()]
        return {
            name for name in self.all() if name not in self.trainable() and name.startswith(tuple(trained))
        }


def _plain(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array that a file of NumPy's can hold: of bfloat16 and the like, the bytes."""
    return value.view(f"u{value.itemsize}") if value.dtype.kind == "V" else value


def _of_dtype(value: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    dtype = numpy_dtype(name)
    return value if dtype is None or value.dtype == dtype else value.view(dtype)
