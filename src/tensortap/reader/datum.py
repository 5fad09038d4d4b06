"""One dumped tensor, and the predicate everybody asks of it first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tensortap.pill import kinds_of_value
from tensortap.store.stored_run import StoredTensor
from tensortap.store.tfdbg import tensor_at
from tensortap.wire.values import InconvertibleTensorProto, TensorValue

__all__ = ["DebugTensorDatum", "has_inf_or_nan"]


class DebugTensorDatum:
    """What is known of one dumped tensor; its value is read, memory-mapped, when it is asked for.

    Attributes:
        stored: the record on disk this describes.
    """

    __slots__ = ("stored",)

    def __init__(self, stored: StoredTensor) -> None:
        self.stored = stored

    @classmethod
    def from_file(cls, dump_root: str | Path, relative_path: str | Path) -> DebugTensorDatum:
        """The datum of one file of a tfdbg directory.

        Raises:
            ValueError: the file name does not follow tfdbg's naming pattern.
        """
        return cls(tensor_at(Path(dump_root), Path(relative_path)))

    def get_tensor(self) -> TensorValue:
        """The value as a read-only array, or an `InconvertibleTensorProto`."""
        return self.stored.load()

    @property
    def timestamp(self) -> int:
        """Microseconds since the epoch."""
        return self.stored.timestamp

    @property
    def extended_timestamp(self) -> str:
        """The timestamp, with a suffix if the watch key was dumped several times in that microsecond."""
        return self.stored.extended_timestamp

    @property
    def debug_op(self) -> str:
        """Name of the debug op."""
        return self.stored.debug_op

    @property
    def device_name(self) -> str:
        """Full name of the device."""
        return self.stored.device

    @property
    def node_name(self) -> str:
        """Name of the node."""
        return self.stored.node_name

    @property
    def output_slot(self) -> int:
        """Which output of the node."""
        return self.stored.output_slot

    @property
    def tensor_name(self) -> str:
        """`node:slot`."""
        return self.stored.tensor_name

    @property
    def watch_key(self) -> str:
        """`node:slot:DebugOp`."""
        return f"{self.tensor_name}:{self.debug_op}"

    @property
    def file_path(self) -> str:
        """The file that holds the value; in the packed layout many tensors share one."""
        return str(self.stored.path)

    @property
    def dump_size_bytes(self) -> int | None:
        """Bytes the value takes on disk: the file in tfdbg's layout, the value itself in the packed one."""
        return self.stored.nbytes

    def __str__(self) -> str:
        what = f"{self.tensor_name} @ {self.debug_op} @ {self.timestamp}"
        return f"{{DebugTensorDatum ({self.device_name}) {what}}}"

    __repr__ = __str__


def has_inf_or_nan(datum: DebugTensorDatum | None, tensor: Any) -> bool:
    """Whether a tensor held any NaN or infinity; for all float, complex and extension types.

    Of a health pill or a NaN count it is the counts that are asked, not the numbers they are made of. False for
    strings, integers, structured, empty, uninitialised and inconvertible values, and for hashes.

    >>> import ml_dtypes
    >>> has_inf_or_nan(None, np.array([1, np.nan], ml_dtypes.bfloat16))
    True
    """
    if tensor is None or isinstance(tensor, InconvertibleTensorProto):
        return False
    return kinds_of_value(None if datum is None else datum.debug_op, np.asarray(tensor)) != 0
