"""Putting a fed value in the place of a tensor, in the middle of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from tensortap.engines.tensors import check_shape
from tensortap.engines.torch.memory import readable
from tensortap.engines.torch.schema import Op
from tensortap.engines.torch.values import as_fed_tensor, dtype_name
from tensortap.errors import FeedError

if TYPE_CHECKING:
    from tensortap.engines.torch.recorder import Call
    from tensortap.sink.publisher import Publisher

__all__ = ["FeedError", "cut_gradient", "fitting", "overwrite", "replace_leaf", "replacement", "substitute"]

log = logging.getLogger("tensortap.engine")


def fitting(name: str, value: Any, replaced: torch.Tensor) -> torch.Tensor:
    """`value` as a tensor with the dtype, shape and device of the one it replaces, or `FeedError`."""
    tensor = as_fed_tensor(name, value, replaced.dtype, replaced.device)
    check_shape(name, tuple(replaced.shape), tuple(tensor.shape))
    return tensor


def overwrite(name: str, value: Any, replaced: torch.Tensor) -> None:
    """Put a value where a tensor has its own; of a wrapper, where what it wraps does.

    Raises:
        FeedError: it does not fit, or there is no such place.
    """
    place = readable(replaced)
    if place is None:
        raise FeedError(
            f"Cannot feed {name!r}: a {type(replaced).__name__} has no memory to put a value into."
        )
    fitted = fitting(name, value, place)
    try:
        place.copy_(fitted)
    except RuntimeError as error:  # of a layout that cannot be written to
        raise FeedError(f"Cannot feed {name!r}: {error}") from error


def replacement(
    publisher: Publisher, name: str, replaced: torch.Tensor, can_be: bool = True
) -> torch.Tensor | None:
    """The value that a debug server sent for a tensor at a breakpoint; None if it sent none, or one that does not fit.

    Unlike a feed, which is a mistake in the program if it does not fit, such a value is only refused.
    """
    value = publisher.replacement(name)
    if value is None:
        return None
    wanted = dtype_name(replaced.dtype)
    try:
        if not can_be:
            raise FeedError("it is state of the program")
        if getattr(value, "dtype", None) is None or value.dtype.name != wanted:
            raise FeedError(f"it is {getattr(value, 'dtype', 'no array')}, the tensor is {wanted}")
        return fitting(name, value, replaced)
    except FeedError as error:
        log.warning(
            "The value that the debug server sent for %s was not put in place: %s.",
            name,
            str(error).rstrip("."),
        )
        return None


def cut_gradient(fed: torch.Tensor) -> None:
    """Make a fed value a constant for the backward pass: its op receives no gradient for this output."""
    slot = fed.output_nr

    def without_this_output(gradients: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(None if position == slot else each for position, each in enumerate(gradients))

    assert fed.grad_fn is not None
    fed.grad_fn.register_prehook(without_this_output)


def replace_leaf(structure: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """`structure` with one tensor exchanged."""
    return pytree.tree_map(lambda leaf: new if leaf is old else leaf, structure)


def substitute(
    op: Op,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    call: Call,
    substitutes: Mapping[str, torch.Tensor],
) -> tuple[Any, Any]:
    """Arguments with fed constants in place. A constant that the op would change cannot be fed."""
    by_identity = {
        id(tensor): (name, substitutes[name])
        for name, tensor in zip(call.inputs, call.tensors, strict=True)
        if name in substitutes
    }
    if not by_identity:
        return args, kwargs
    if op.writes:
        for tensor in op.written(args, kwargs):
            if id(tensor) in by_identity:
                raise FeedError(
                    f"Cannot feed {by_identity[id(tensor)][0]!r}: {call.entry.name!r} changes this tensor in "
                    f"place. Feed {call.entry.tensor(0)!r} instead."
                )

    def swap(leaf: Any) -> Any:
        return by_identity[id(leaf)][1] if id(leaf) in by_identity else leaf

    return pytree.tree_map(swap, tuple(args)), pytree.tree_map(swap, dict(kwargs))
