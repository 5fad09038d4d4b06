"""What hooks need of a summary writer, and how a writer of somebody else's is used as one.

Hooks call `add_scalar`, `add_value`, `add_session_start` and `flush`. `EventWriter` has them; any object with
`add_scalar(tag, value, step)`, such as PyTorch's `SummaryWriter`, is given the others here.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

__all__ = ["SummaryWriter", "as_summary_writer"]

_log = logging.getLogger("tensortap.hooks")


class SummaryWriter(ABC):
    """Writes numbers, arrays and `Summary` messages under a tag and a step.

    Attributes:
        dropped: how many could not be written.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._refused: set[str] = set()

    @abstractmethod
    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Write one number."""

    @abstractmethod
    def add_histogram(self, tag: str, values: Any, step: int) -> None:
        """Write the distribution of an array."""

    @abstractmethod
    def add_summary(self, summary: Any, step: int) -> None:
        """Write a `Summary` message, or the bytes of one."""

    @abstractmethod
    def add_session_start(self, step: int) -> None:
        """Note that a session starts at `step`."""

    @abstractmethod
    def flush(self) -> None:
        """Hand everything written so far to the operating system."""

    def add_value(self, tag: str, value: Any, step: int) -> None:
        """Write whatever a run returned: `Summary` bytes or messages, numbers, or arrays as histograms.

        A value that cannot be summarised is said once per tag and counted as dropped.
        """
        try:
            self._add_value(tag, value, step)
        except Exception as error:
            self.dropped += 1
            if tag not in self._refused:
                self._refused.add(tag)
                _log.warning("Cannot write a summary of %r, got %s: %s", tag, type(value).__name__, error)

    def _add_value(self, tag: str, value: Any, step: int) -> None:
        array = None if hasattr(value, "SerializeToString") else np.asarray(value)
        if array is not None and array.dtype.kind in "SO" and array.ndim == 0:
            # NumPy cuts trailing zeros off bytes of fixed length, so take the original if there is one.
            value, array = value if isinstance(value, bytes) else array.item(), None
        if array is None:
            if value is None:
                raise TypeError("there is no value")
            self.add_summary(value, step)
            return
        numbers = np.abs(array) if array.dtype.kind == "c" else array.astype(np.float64)
        if array.ndim == 0:
            self.add_scalar(tag, float(numbers), step)
        else:
            self.add_histogram(tag, numbers, step)


class _OtherWriter(SummaryWriter):
    """A writer of somebody else's; what it has no method for is refused, which `add_value` says."""

    def __init__(self, writer: Any) -> None:
        super().__init__()
        self._writer = writer

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self._writer.add_scalar(tag, value, step)

    def add_histogram(self, tag: str, values: Any, step: int) -> None:
        self._writer.add_histogram(tag, values, step)

    def add_summary(self, summary: Any, step: int) -> None:
        if callable(getattr(self._writer, "add_summary", None)):
            self._writer.add_summary(summary, step)
            return
        if isinstance(summary, bytes):
            from tensortap.wire.messages import Summary

            summary = Summary.FromString(summary)
        kinds = {value.WhichOneof("value") for value in summary.value}
        if kinds - {"simple_value"}:
            raise TypeError(f"{type(self._writer).__name__} has no add_summary")
        for value in summary.value:
            self.add_scalar(value.tag, value.simple_value, step)

    def add_session_start(self, step: int) -> None:
        """Nothing: it tells TensorBoard of a restart, and other writers have no word for that."""

    def flush(self) -> None:
        flush = getattr(self._writer, "flush", None)
        if callable(flush):
            flush()


def as_summary_writer(writer: Any) -> SummaryWriter | None:
    """What a user passes as `summary_writer`, as hooks call it.

    Raises:
        TypeError: it cannot even write a number.
    """
    if writer is None or isinstance(writer, SummaryWriter):
        return writer
    if not callable(getattr(writer, "add_scalar", None)):
        raise TypeError(
            "summary_writer= takes a writer of tensortap or an object with add_scalar(tag, value, step), such as "
            f"torch.utils.tensorboard.SummaryWriter; got {type(writer).__name__}."
        )
    return _OtherWriter(writer)
