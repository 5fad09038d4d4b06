"""What an engine must be able to do with the tensors of its framework, so that nobody above needs to know them.

Sessions, requests, watches and summaries are the same for every engine; only touching a tensor differs. An engine gives
its sessions one `Tensors`. What has a body here is right for tensors that are arrays in host memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tensortap.errors import FeedError, UnknownTensorError
from tensortap.ops.dtypes import CODES
from tensortap.ops.view import TensorView
from tensortap.records import TensorSpec, device_name

__all__ = ["PlainMemory", "RemoteSummaries", "Tensors", "check_shape"]

PlainMemory = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Address, code of the dtype, shape and strides in elements: all that the kernel needs."""


class RemoteSummaries(Protocol):
    """Numeric summaries that are made where the tensors are, and brought to the host together."""

    def add(self, tensor: Any) -> int:
        """Begin the summary of one tensor, without waiting for it."""

    def collect_rows(self) -> list[npt.NDArray[np.float64]]:
        """The summaries of all tensors added, in that order."""


class Tensors(ABC):
    """The tensors of one framework."""

    @abstractmethod
    def is_tensor(self, value: Any) -> bool:
        """Whether this is a live tensor of the framework."""

    @abstractmethod
    def spec_of(self, tensor: Any) -> TensorSpec:
        """Dtype and shape, in the names that records use."""

    @abstractmethod
    def view_of(self, tensor: Any) -> TensorView:
        """The memory of a tensor as debug ops read it, without a copy where possible; one without a value if there is
        nothing that could be read."""

    @abstractmethod
    def snapshot(self, tensor: Any) -> Any:
        """A copy of the value as it is now, of which nobody knows."""

    @abstractmethod
    def to_numpy(self, value: Any) -> Any:
        """The NumPy form of a tensor that nobody else will change; anything else passes unchanged."""

    @abstractmethod
    def as_fed(self, name: str, value: Any, spec: TensorSpec) -> Any:
        """A fed value as a tensor that can stand in for the tensor `name`.

        Python numbers and lists take the dtype they replace; tensors and arrays must already have it, because a
        silent conversion would hide the mistake that is being looked for.

        Raises:
            FeedError: the value does not fit.
        """

    def device_of(self, tensor: Any) -> str:
        """Name of the device a tensor is on."""
        return device_name("cpu")

    def readable(self, tensor: Any) -> Any | None:
        """The tensor to read in the place of this one: itself, or what it wraps; None if there is nothing to read."""
        return tensor

    def plain_memory(self, tensor: Any) -> PlainMemory | None:
        """Where the elements of a tensor lie in host memory, if they do and all of them; nobody is asked twice."""
        view = self.view_of(tensor)
        code = CODES.get(view.dtype)
        return None if code is None or not view.has_value else (view.address, code, view.shape, view.strides)

    def coordinates_of(self, tensor: Any) -> TensorView | None:
        """Where the stored values of a sparse tensor belong, a column for each; None for a dense one."""
        return None

    def is_elsewhere(self, tensor: Any) -> bool:
        """Whether a tensor is not in host memory."""
        return False

    def remote_summaries(self, lower: float, upper: float) -> RemoteSummaries:
        """Makes the summaries of tensors that are elsewhere; see `DebugNumericSummary` for the bounds."""
        raise NotImplementedError(f"{type(self).__name__} knows of no other memory than the host's")

    def named(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors among the arguments of a step, nested ones by their path."""
        return {name: value for name, value in arguments.items() if self.is_tensor(value)}

    def detached(self, value: Any) -> Any:
        """A tensor without its history; anything else as it is."""
        return value

    def from_numpy(self, value: Any) -> Any:
        """An array as a tensor."""
        return value

    def looking(self) -> AbstractContextManager[Any]:
        """A block in which somebody computes with tensors of the program without it being part of the program."""
        return nullcontext()

    # --- what follows from these -------------------------------------------------------------------

    def value_of(self, tensor: Any) -> Any:
        """The present value as a NumPy array of its own."""
        return self.to_numpy(self.snapshot(tensor))

    def fitting(self, name: str, value: Any, spec: TensorSpec) -> Any:
        """A fed value as a tensor, if dtype and shape are those it replaces.

        Raises:
            FeedError: they are not.
        """
        tensor = self.as_fed(name, value, spec)
        if self.is_tensor(tensor):  # not of a dtype that nobody can make
            check_shape(name, spec.shape, self.spec_of(tensor).shape)
        return tensor

    def must_read(self, tensor: Any) -> Any:
        """What `readable` gives.

        Raises:
            UnknownTensorError: there is nothing to read.
        """
        seen = self.readable(tensor)
        if seen is None:
            raise UnknownTensorError(f"A {type(tensor).__name__} has no value here that could be read.")
        return seen


def check_shape(name: str, expected: tuple[int | None, ...], got: tuple[int | None, ...]) -> None:
    """Refuse a fed value whose shape cannot be the one it replaces (None: any size).

    >>> check_shape("x:0", (None, 3), (2, 3))
    """
    fits = len(expected) == len(got) and all(e in (None, g) for e, g in zip(expected, got, strict=True))
    if not fits:
        shown = "[" + ", ".join("?" if e is None else str(e) for e in expected) + "]"
        raise FeedError(f"Cannot feed {name!r}: its shape is {shown}, the fed value has shape {list(got)}.")
