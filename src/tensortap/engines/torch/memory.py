"""Which memory stands for a tensor, proven before anybody reads it.

The object that a program holds may have no elements of its own: a `DTensor` shows the shape of the whole and has the
rank's shard inside, other subclasses wrap one tensor or several, and so do the levels of functorch. Their own storage
is a shape without memory, with an address that means nothing. So everything here that is read goes through `readable`,
which gives an ordinary tensor with memory for all of its elements, or nothing; what cannot be read is recorded as not
looked at. None of this calls code of a subclass, except `__tensor_flatten__`, which only names attributes.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

__all__ = [
    "asking_no_class",
    "has_data",
    "held_in",
    "in_place_of",
    "is_freed",
    "is_ordinary",
    "is_plain",
    "readable",
    "shows_its_ops",
]

P = ParamSpec("P")
T = TypeVar("T")

_ORDINARY = frozenset([torch.Tensor, nn.Parameter])
_MOST_LEVELS = 8  # of wrappers in wrappers

# Subclasses that stand for values which are nowhere (fake, functional), or hold elements that do not count (masked).
_NOTHING_INSIDE = ("torch._subclasses.", "torch.masked.")

_keys_of: Any = torch._C._dispatch_keys
_address_of: Any = torch._C._data_address  # type: ignore[attr-defined]
_PYTHON = torch._C.DispatchKey.Python
_functorch: Any = torch._C._functorch

_shows_its_ops: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def asking_no_class(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates what asks tensors for their properties: no `__torch_function__` of theirs is called for that."""

    @functools.wraps(function)
    def asks(*args: P.args, **kwargs: P.kwargs) -> T:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    return asks


def readable(tensor: torch.Tensor) -> torch.Tensor | None:
    """The ordinary tensor that can be read in the place of this one: itself, or what it wraps.

    None if there is nothing to read: on the meta device, of which the memory has been freed, that is only a shape or
    still on its way from another rank, or that wraps more than one tensor which could stand for it.
    """
    for _ in range(_MOST_LEVELS):
        if type(tensor) in _ORDINARY:
            if has_data(tensor) and not tensor.is_meta:
                return tensor
            inner = _level_below(tensor)
        else:
            inner = _inside(tensor)
        if inner is None:
            return None
        tensor = inner
    return None


def prove_with(covers: Callable[[torch.Tensor], bool]) -> None:
    """Ask somebody else whether a strided tensor has memory for all of its elements.

    From Python one has to make an object of the storage, which is counted as a user of it from then on: autograd would
    not add to such a gradient in place.
    """
    global _covers
    _covers = covers


def _storage_covers(tensor: torch.Tensor) -> bool:
    try:
        storage = tensor.untyped_storage()
        if tensor.numel() == 0:
            return True
        if not storage.data_ptr():
            return False
    except (NotImplementedError, RuntimeError):  # no storage at all, or one without memory
        return False
    extent = tensor.storage_offset() + 1
    extent += sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return storage.nbytes() >= extent * tensor.element_size()


_covers = _storage_covers


def in_place_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor by whose storage this one is known, whether or not that has memory; None for a wrapper of nothing."""
    return tensor if type(tensor) in _ORDINARY else readable(tensor)


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of no class of its own, and so stands for itself."""
    return type(tensor) in _ORDINARY


def held_in(kind: type) -> str | None:
    """The attribute in which every tensor of a class has the one it is known by.

    None for classes that hold several, or of which one cannot know: there `in_place_of` looks into each tensor.
    """
    shards = sys.modules.get("torch.distributed.tensor")
    return "_local_tensor" if shards is not None and kind is getattr(shards, "DTensor", None) else None


def has_data(tensor: torch.Tensor) -> bool:
    """Whether there is memory behind every element of an ordinary tensor, as far as it needs any."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested:
        return True
    return _covers(tensor)


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether a tensor has lost its memory: sharded programs free and refill that of their weights."""
    return type(tensor) in _ORDINARY and not has_data(tensor)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor lie in host memory as they are, and all of them do."""
    return (
        type(tensor) in _ORDINARY
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested)
        and has_data(tensor)
    )


def shows_its_ops(tensor: torch.Tensor) -> bool:
    """Whether an op on this tensor is seen as the ops that its class executes on what it wraps.

    Of a `DTensor` these are the ops on the shard, and the communication between ranks.
    """
    kind = type(tensor)
    if kind in _ORDINARY:
        return False
    known = _shows_its_ops.get(kind)
    if known is None:
        nothing_inside = any(each.__module__.startswith(_NOTHING_INSIDE) for each in kind.__mro__)
        known = _shows_its_ops[kind] = _is_wrapper(tensor) and not nothing_inside
    return known


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a class that executes its ops in Python, and no memory of its own."""
    if not _keys_of(tensor).has(_PYTHON):
        return False
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return not _address_of(tensor)
        except (NotImplementedError, RuntimeError):
            return True


def _inside(tensor: torch.Tensor) -> torch.Tensor | None:
    """What stands for a tensor of a subclass."""
    name = held_in(type(tensor))
    if name is not None:
        held = getattr(tensor, name, None)
        return held if isinstance(held, torch.Tensor) else None
    if not _is_wrapper(tensor):
        # It has its elements itself: the same memory without the class, whose code would run at every question.
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch(), torch.no_grad():
            return tensor.detach()
    if any(each.__module__.startswith(_NOTHING_INSIDE) for each in type(tensor).__mro__):
        return None
    try:
        if getattr(tensor, "completed", True) is False:
            return None  # a collective is still writing it
        found = _tensors_in(tensor)
    except Exception:  # of a class that is not ready, or not what it seems
        return None
    return found[0] if len(found) == 1 else None


def _tensors_in(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in a wrapper that could stand for it."""
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.is_nested:
            values: Any = tensor._values
            return [values]
        flatten = getattr(tensor, "__tensor_flatten__", None)
        names = _attributes(tensor) if flatten is None else flatten()[0]
        held = [getattr(tensor, name, None) for name in names]
        tensors = [each for each in held if isinstance(each, torch.Tensor) and each is not tensor]
        return [each for each in tensors if each.dtype == tensor.dtype]


def _attributes(tensor: torch.Tensor) -> list[str]:
    slots = [vars(each).get("__slots__", ()) for each in type(tensor).__mro__]
    return [
        *vars(tensor),
        *(name for names in slots for name in ((names,) if isinstance(names, str) else names)),
    ]


def _level_below(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a level of functorch (`vmap`, `grad`) has made a tensor of: all examples of a batch."""
    if tensor.is_meta or not _functorch.is_functorch_wrapped_tensor(tensor):
        return None
    if _functorch.is_functionaltensor(tensor):
        return None  # what it wraps lags behind
    inner: torch.Tensor = _functorch.get_unwrapped(tensor)
    return inner
