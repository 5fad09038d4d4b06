"""One recorded value: found by the name of its tensor, cut to slices, and in the form that files and JSON can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensortap.analyze.names import full_name
from tensortap.analyze.slicing import Index, split_slices
from tensortap.errors import NotThereError, UsageError

if TYPE_CHECKING:
    from tensortap.reader import DebugDumpDir, DebugTensorDatum

__all__ = ["FoundRecord", "NoSuchOp", "NoSuchTensor", "find_record", "find_value", "storable"]

WHOLE_VALUE = "DebugIdentity"


class NoSuchTensor(NotThereError):
    """A run recorded nothing of a tensor.

    Attributes:
        tensor: what was asked for.
        names: what there is.
    """

    def __init__(self, tensor: str, names: Sequence[str]) -> None:
        super().__init__(f"The run has no tensor {tensor[:200]!r}.")
        self.tensor = tensor
        self.names = names


class NoSuchOp(NotThereError):
    """A tensor was recorded, but not with the debug op that was asked for.

    Attributes:
        ops: those it was recorded with.
    """

    def __init__(self, tensor: str, op: str, ops: Sequence[str]) -> None:
        super().__init__(f"{tensor!r} has no record of {op[:80]!r}; it has {', '.join(ops)}.")
        self.ops = ops


@dataclass(frozen=True)
class FoundRecord:
    """One record of a tensor.

    Attributes:
        datum: the record.
        executions: how many times the tensor was recorded by this debug op.
        asked: as it was asked for.
        slices: what is wanted of the value; everything if it is empty.
    """

    datum: DebugTensorDatum
    executions: int
    asked: str
    slices: tuple[Index, ...] = ()

    def value(self) -> Any:
        """The value, cut to the slices.

        Raises:
            UsageError: it cannot be sliced so.
            DamagedValueError: it is not what was written.
        """
        value: Any = self.datum.get_tensor()
        if not self.slices:
            return value
        if not hasattr(value, "dtype"):
            raise UsageError(f"{self.datum.tensor_name!r} has no value that could be sliced.")
        try:
            return value[self.slices]
        except IndexError as error:
            raise UsageError(f"{self.asked[:200]!r}: {error} (its shape is {list(value.shape)}).") from None


def find_value(run: DebugDumpDir, text: str, debug_op: str | None = None, execution: int = -1) -> FoundRecord:
    """The record of a tensor as people name it: `node:slot[0, -1, ::2]`, where slot and slices may be left out.

    Args:
        run: where to look.
        text: the tensor.
        debug_op: which record; by default the whole value if there is one, else the first there is. `Debug` may be left
            out.
        execution: which of several.

    Raises:
        NotThereError: there is no such tensor, debug op or execution.
        UsageError: slices that are none.
    """
    name, slices = split_slices(text)
    found = find_record(run, full_name(name), debug_op, execution)
    return FoundRecord(found.datum, found.executions, text, slices)


def find_record(
    run: DebugDumpDir,
    tensor: str,
    debug_op: str | None = None,
    execution: int = -1,
    device: str | None = None,
) -> FoundRecord:
    """The record of a tensor by its exact name, on one device or any.

    Raises:
        NotThereError: there is no such tensor, debug op or execution.
    """
    data = [
        datum
        for datum in run.dumped_tensor_data
        if datum.tensor_name == tensor and device in (None, datum.device_name)
    ]
    if not data:
        raise NoSuchTensor(tensor, sorted({datum.tensor_name for datum in run.dumped_tensor_data}))
    ops = list(dict.fromkeys(datum.debug_op for datum in data))
    op = debug_op or (WHOLE_VALUE if WHOLE_VALUE in ops else ops[0])
    if op not in ops and f"Debug{op}" in ops:  # as `ls` shows it
        op = f"Debug{op}"
    data = [datum for datum in data if datum.debug_op == op]
    if not data:
        raise NoSuchOp(tensor, op, ops)
    if not -len(data) <= execution < len(data):
        raise NotThereError(f"{tensor!r} was executed {len(data)} times; there is no execution {execution}.")
    return FoundRecord(data[execution], len(data), tensor)


def storable(value: Any) -> npt.NDArray[Any] | None:
    """A value as a NumPy file can hold it, types of other libraries as float32; None if it cannot.

    >>> import ml_dtypes
    >>> storable(np.ones(2, ml_dtypes.bfloat16)).dtype, storable("text")
    (dtype('float32'), None)
    """
    if not hasattr(value, "dtype"):
        return None
    array = np.asarray(value)
    if array.dtype.kind == "O":
        return None
    return array.astype(np.float32) if array.dtype.kind == "V" else array
