"""Which node produced the tensor in front of us.

Python objects do not answer that: autograd hands out new objects for the same value, and two objects may
share memory. So a value is identified by its *place*: storage, offset, shape, strides, dtype.

- A storage is held by a weak pointer for as long as the run lasts. That frees its data as usual, but keeps
  its address from being given to another storage, so an address can never be mistaken.
- Each storage counts writes. A place whose value was named before the last write through another view is
  *stale*: its name still says which memory it is, and the last writer is reported along with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from tensortap.engines.torch.memory import in_place_of
from tensortap.engines.torch.values import shape_of
from tensortap.records import Node

__all__ = ["Memory", "Origin", "Place", "Provenance"]

# Storage, offset, shape, strides, dtype, and whether reading negates or conjugates (lazy views do).
Place = tuple[int, Any, Any, Any, torch.dtype, bool, bool]

_free_weak_ref: Callable[[int], None] = torch.UntypedStorage._free_weak_ref

OFFSET: Literal[1] = 1
SHAPE: Literal[2] = 2
STRIDES: Literal[3] = 3
DTYPE: Literal[4] = 4


class Memory:
    """One storage of the run: how often it was written, by which node last, and the first place named in it."""

    __slots__ = ("root", "version", "writer")

    def __init__(self, root: Place) -> None:
        self.version = 0
        self.writer: str | None = None
        self.root = root


class Origin:
    """The tensor name of a value, and the write count of its storage when it got that name."""

    __slots__ = ("memory", "name", "source", "version")

    def __init__(self, name: str, memory: Memory, source: Node | None = None) -> None:
        self.name = name
        self.memory = memory
        self.version = memory.version
        self.source = source
        """Set while the value comes from outside the run and has not been used yet."""


class Provenance:
    """All places of a run that have a name."""

    def __init__(self) -> None:
        self.origins: dict[Place, Origin] = {}
        self._memories: dict[int, Memory] = {}
        self._guards: list[int] = []
        self._objects: dict[int, weakref.ref[torch.Tensor]] = {}

    def release(self) -> None:
        """Let go of every storage. Must be called when the run is over."""
        self.origins.clear()
        self._memories.clear()
        guards, self._guards = self._guards, []
        for guard in guards:
            _free_weak_ref(guard)

    def place_of(self, tensor: torch.Tensor) -> Place:
        """Where a tensor lives, and how it reads it; a wrapper lives where what it wraps does."""
        seen = in_place_of(tensor)
        if seen is None:
            return (self._object_address(tensor), 0, shape_of(tensor), None, tensor.dtype, False, False)
        tensor = seen
        try:
            return (
                tensor.untyped_storage()._cdata,
                tensor.storage_offset(),
                tensor.shape,
                tensor.stride(),
                tensor.dtype,
                tensor.is_neg(),
                tensor.is_conj(),
            )
        except (NotImplementedError, RuntimeError):  # sparse and other tensors without a storage
            return (self._object_address(tensor), 0, shape_of(tensor), None, tensor.dtype, False, False)

    def find(self, tensor: torch.Tensor) -> Origin | None:
        """The origin of the tensor's value, stale or not."""
        return self.origins.get(self.place_of(tensor))

    def memory_at(self, place: Place) -> Memory | None:
        """The record of a storage, if anything in it has a name."""
        return self._memories.get(place[0])

    def assign(self, tensor: torch.Tensor, place: Place, name: str, source: Node | None = None) -> Memory:
        """Give the value at a place its name."""
        memory = self._memories.get(place[0])
        if memory is None:
            memory = self._memories[place[0]] = Memory(place)
            if place[0] >= 0:
                seen = in_place_of(tensor)
                assert seen is not None
                storage: Any = seen.untyped_storage()
                self._guards.append(storage._weak_ref())
        self.origins[place] = Origin(name, memory, source)
        return memory

    def _object_address(self, tensor: torch.Tensor) -> int:
        """A negative number that stands for the object, and for no other one in this run."""
        known = self._objects.get(id(tensor))
        if known is None or known() is not tensor:
            self._objects[id(tensor)] = weakref.ref(tensor)
            self._memories.pop(-id(tensor), None)
            for place in [place for place in self.origins if place[0] == -id(tensor)]:
                del self.origins[place]
        return -id(tensor)
