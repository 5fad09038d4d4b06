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
from enum import Enum
from typing import Any, Literal

import torch

from tensortap.engines.torch.memory import in_place_of
from tensortap.engines.torch.values import shape_of
from tensortap.records import Node

__all__ = ["Content", "Memory", "Origin", "Place", "Places", "Survivors"]

# Storage, offset, shape, strides, dtype, and whether reading negates or conjugates (lazy views do).
Place = tuple[int, Any, Any, Any, torch.dtype, bool, bool]

_free_weak_ref: Callable[[int], None] = torch.UntypedStorage._free_weak_ref
_is_expired: Any = torch.UntypedStorage._expired
_MOST_SURVIVORS = 10_000

OFFSET: Literal[1] = 1
SHAPE: Literal[2] = 2
STRIDES: Literal[3] = 3
DTYPE: Literal[4] = 4


class Content(Enum):
    """Whether it means anything what a memory holds."""

    THERE = "it does"
    GARBAGE = "nobody has written it yet"
    ARRIVING = "a collective is writing it; whoever computes with it first has waited for that"


class Memory:
    """One storage of the run: how often it was written, by which node last, and the first place named in it."""

    __slots__ = ("arriving", "content", "guard", "root", "version", "writer", "written_bytes")

    def __init__(self, root: Place) -> None:
        self.content = Content.THERE
        self.written_bytes = 0  # while it is garbage
        self.arriving: tuple[str, Node, int] | None = None  # tensor name, node and slot, while it arrives
        self.version = 0
        self.writer: str | None = None
        self.root = root
        self.guard: int | None = None
        """The weak pointer; None for tensors without a storage."""


class Origin:
    """The tensor name of a value, and the write count of its storage when it got that name."""

    __slots__ = ("memory", "name", "source", "version")

    def __init__(self, name: str, memory: Memory, source: Node | None = None) -> None:
        self.name = name
        self.memory = memory
        self.version = memory.version
        self.source = source
        """Set while the value comes from outside the run and has not been used yet."""


class Places:
    """All places of a run that have a name."""

    def __init__(self) -> None:
        self.origins: dict[Place, Origin] = {}
        self.owners: dict[str, str] = {}
        """Within an optimizer: the parameter that a tensor has to do with, by tensor name."""
        self._memories: dict[int, Memory] = {}
        self._objects: dict[int, weakref.ref[torch.Tensor]] = {}

    def release(self) -> None:
        """Let go of every storage. Must be called when the run is over."""
        self.origins.clear()
        memories, self._memories = self._memories, {}
        for memory in memories.values():
            if memory.guard is not None:
                _free_weak_ref(memory.guard)

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

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The name of the tensor's value, stale or not."""
        origin = self.origins.get(self.place_of(tensor))
        return None if origin is None else origin.name

    def is_unwritten(self, tensor: torch.Tensor) -> bool:
        """Whether an op of this run has made its memory, and nobody has written it yet."""
        memory = self.memory_at(self.place_of(tensor))
        return memory is not None and memory.content is Content.GARBAGE and not memory.written_bytes

    def add_source(self, tensor: torch.Tensor, node: Node) -> bool:
        """Give a tensor from outside its name; it becomes this node when it is used."""
        self.assign(tensor, self.place_of(tensor), node.tensor(0), node)
        return True

    def own(self, tensor: torch.Tensor, path: str) -> bool:
        """Note the parameter that a tensor has to do with within an optimizer; False if it has no name yet."""
        name = self.name_of(tensor)
        if name is not None:
            self.owners[name] = path
        return name is not None

    def expect(self, node: Node) -> None:
        """Be told of a tensor that is not there yet: nothing to remember for this run."""

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
                memory.guard = storage._weak_ref()
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


class Survivors:
    """Bad values that have outlived the run that made them, by where they live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int, str]] = {}  # storage: weak pointer, run, tensor

    def __del__(self) -> None:
        for guard, _, _ in self._known.values():
            _free_weak_ref(guard)

    def origin_of(self, place: Place) -> tuple[int, str] | None:
        """The run and the tensor that a bad value from outside is from."""
        known = self._known.get(place[0])
        return None if known is None else known[1:]

    def see_off(self, places: Places, bad: Callable[[str], int], run: int) -> list[str]:
        """A run is over: note what is left of its bad values; the names of those whose memory is free."""
        for storage, (guard, _, _) in list(self._known.items()):
            memory = places._memories.get(storage)
            if _is_expired(guard) or (memory is not None and memory.version):
                del self._known[storage]
                _free_weak_ref(guard)
        gone = []
        for place, origin in places.origins.items():
            memory = origin.memory
            if memory.guard is None or origin.version != memory.version or not bad(origin.name):
                continue
            if _is_expired(memory.guard):
                gone.append(origin.name)
            elif place[0] not in self._known and len(self._known) < _MOST_SURVIVORS:
                self._known[place[0]] = (memory.guard, run, origin.name)
                memory.guard = None  # it is ours now
        return gone
