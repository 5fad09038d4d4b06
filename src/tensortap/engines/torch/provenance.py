"""Which node produced the tensor in front of us.

Python objects do not answer that: autograd hands out new objects for the same value, and two objects may
share memory. So a value is identified by *where it lives*: storage, offset, shape, strides, dtype.

- A storage is held by a weak pointer for as long as the run lasts. That frees its data as usual, but keeps
  its address from being given to another storage, so an address can never be mistaken.
- Each storage counts writes. A place whose value was named before the last write through another view is
  *stale*: its name still says which memory it is, and the last writer is reported along with it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tensortap.records import Node

__all__ = ["Memory", "Origin", "Provenance", "place_of"]

# Offset, shape, strides, dtype, and whether reading negates or conjugates (lazy views do).
Place = tuple[Any, Any, Any, torch.dtype, bool, bool]


class Origin:
    """The tensor name of a value, and the write count of its storage when it got that name."""

    __slots__ = ("name", "source", "version")

    def __init__(self, name: str, version: int, source: Node | None = None) -> None:
        self.name = name
        self.version = version
        self.source = source
        """Set while the value comes from outside the run and has not been used yet."""


class Memory:
    """One storage of the run: the named places in it, and the node that last wrote to it."""

    __slots__ = ("guard", "places", "root", "version", "writer")

    def __init__(self, guard: Any) -> None:
        self.guard = guard
        self.places: dict[Place, Origin] = {}
        self.version = 0
        self.writer: str | None = None
        self.root: tuple[str, torch.dtype] | None = None


class Provenance:
    """All storages seen in a run."""

    def __init__(self) -> None:
        self._memories: dict[int, Memory] = {}

    def memory_of(self, tensor: torch.Tensor) -> Memory:
        """The record of the tensor's storage, made when it is new."""
        try:
            storage = tensor.untyped_storage()
            address = storage._cdata
        except (NotImplementedError, RuntimeError):  # sparse and other tensors without a storage
            return self._memory_of_object(tensor)
        found = self._memories.get(address)
        if found is None:
            found = self._memories[address] = Memory(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return found

    def _memory_of_object(self, tensor: torch.Tensor) -> Memory:
        address = -id(tensor)
        found = self._memories.get(address)
        if found is None or found.guard() is not tensor:
            found = self._memories[address] = Memory(weakref.ref(tensor))
        return found

    def assign(self, tensor: torch.Tensor, name: str, source: Node | None = None) -> None:
        """Give the tensor's value a name."""
        memory = self.memory_of(tensor)
        memory.places[place_of(tensor)] = Origin(name, memory.version, source)
        if memory.root is None:
            memory.root = (name, tensor.dtype)

    def find(self, tensor: torch.Tensor) -> Origin | None:
        """The origin of the tensor's value, stale or not."""
        return self.memory_of(tensor).places.get(place_of(tensor))


def place_of(tensor: torch.Tensor) -> Place:
    """Where in its storage a tensor lives, and how it reads it."""
    try:
        offset, strides = tensor.storage_offset(), tensor.stride()
    except (NotImplementedError, RuntimeError):
        return (0, tensor.shape, None, tensor.dtype, False, False)
    return (offset, tensor.shape, strides, tensor.dtype, tensor.is_neg(), tensor.is_conj())
