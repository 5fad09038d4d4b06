"""Putting a fed value in the place of a tensor, in the middle of a run."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from tensortap.engines.tensors import check_shape
from tensortap.engines.torch.memory import readable
from tensortap.engines.torch.values import as_fed_tensor, dtype_name
from tensortap.errors import FeedError
from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.engines.torch.calls import Call
    from tensortap.engines.torch.interceptor import Observation, RunPlan
    from tensortap.engines.torch.places import Places
    from tensortap.sink.publisher import Publisher

__all__ = ["FeedError", "Feeding", "fitting"]

log = logging.getLogger("tensortap.engine")


class Feeding:
    """The values of one run that are not its own: those it was fed, and those a debug server sent at breakpoints.

    Args:
        plan: what the run is fed.
        observation: learns what has been put in place.
    """

    def __init__(self, plan: RunPlan, observation: Observation) -> None:
        self._feeds = plan.feeds
        self._fed = observation.fed
        watching = plan.watching
        self._stops = watching.publisher if watching is not None and watching.stops else None
        self._substitutes: dict[str, torch.Tensor] = {}
        self._cuts: list[weakref.ref[torch.Tensor]] = []

    def release(self) -> None:
        """Let go of every tensor."""
        self._substitutes.clear()

    def before(self, call: Call) -> None:
        """Put fed constants in the place of arguments."""
        if self._cuts:
            self._cut_gradients()
        if self._substitutes:
            call.args, call.kwargs = _substituted(call, self._substitutes)

    def source(self, name: str, node: Node, tensor: torch.Tensor) -> None:
        """A tensor from outside is used for the first time."""
        can_be = node.op_type in ("Const", "Placeholder")
        if name in self._feeds and can_be:
            self._substitutes[name] = fitting(name, self._feeds[name], tensor)
            self._fed.add(name)
        if self._stops is not None:
            replaced = _replacement(self._stops, name, tensor, can_be)
            if replaced is not None:
                self._substitutes[name] = replaced

    def feed_outputs(self, call: Call, result: Any, outputs: list[torch.Tensor]) -> Any:
        """Put fed values in the place of what an op has made; its result, with them."""
        if not self._feeds:
            return result
        for slot, tensor in enumerate(outputs):
            name = call.entry.tensor(slot)
            if name not in self._feeds:
                continue
            self._fed.add(name)
            if call.op.is_view:
                # Writing into a view would change its base too, which nobody asked for.
                fresh = torch.empty_like(tensor)
                _overwrite(name, self._feeds[name], fresh)
                result = _replace_leaf(result, tensor, fresh)
                outputs[slot] = tensor = fresh
            else:
                _overwrite(name, self._feeds[name], tensor)
            self._cuts.append(weakref.ref(tensor))
        return result

    def replace_outputs(self, call: Call, result: Any, outputs: list[torch.Tensor], places: Places) -> Any:
        """Put the values in place that a debug server sent at breakpoints."""
        if self._stops is None:
            return result
        for slot, tensor in enumerate(outputs):
            name = call.entry.tensor(slot)
            value = _replacement(self._stops, name, tensor)
            if value is None:
                continue
            if call.op.is_view:
                fresh = torch.empty_like(tensor).copy_(value)
                result = _replace_leaf(result, tensor, fresh)
                places.assign(fresh, places.place_of(fresh), name)
                tensor = fresh
            else:
                tensor.copy_(value)
            self._cuts.append(weakref.ref(tensor))
        return result

    def feed_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Put a fed value where a complete gradient is."""
        if name in self._feeds:
            _overwrite(name, self._feeds[name], gradient)
            self._fed.add(name)

    def replace_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Put the value there that a debug server sent for a complete gradient."""
        replaced = None if self._stops is None else _replacement(self._stops, name, gradient)
        if replaced is not None:
            gradient.copy_(replaced)

    def _cut_gradients(self) -> None:
        """Let no gradient pass from a fed value to the op whose output it replaced.

        Autograd attaches the op to its output only after we have returned it, so this is done when the next
        op begins.
        """
        waiting: list[weakref.ref[torch.Tensor]] = []
        for reference in self._cuts:
            fed = reference()
            if fed is None:
                continue
            if fed.grad_fn is None:
                waiting.append(reference)
            else:
                _cut_gradient(fed)
        self._cuts = waiting


def fitting(name: str, value: Any, replaced: torch.Tensor) -> torch.Tensor:
    """`value` as a tensor with the dtype, shape and device of the one it replaces, or `FeedError`."""
    tensor = as_fed_tensor(name, value, replaced.dtype, replaced.device)
    check_shape(name, tuple(replaced.shape), tuple(tensor.shape))
    return tensor


def _overwrite(name: str, value: Any, replaced: torch.Tensor) -> None:
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


def _replacement(
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


def _cut_gradient(fed: torch.Tensor) -> None:
    """Make a fed value a constant for the backward pass: its op receives no gradient for this output."""
    slot = fed.output_nr

    def without_this_output(gradients: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(None if position == slot else each for position, each in enumerate(gradients))

    assert fed.grad_fn is not None
    fed.grad_fn.register_prehook(without_this_output)


def _replace_leaf(structure: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """`structure` with one tensor exchanged."""
    return pytree.tree_map(lambda leaf: new if leaf is old else leaf, structure)


def _substituted(call: Call, substitutes: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
    """Arguments with fed constants in place. A constant that the op would change cannot be fed."""
    args, kwargs = call.args, call.kwargs
    by_identity = {
        id(tensor): (name, substitutes[name])
        for name, tensor in zip(call.inputs, call.tensors, strict=True)
        if name in substitutes
    }
    if not by_identity:
        return args, kwargs
    if call.op.writes:
        for tensor in call.op.written(args, kwargs):
            if id(tensor) in by_identity:
                raise FeedError(
                    f"Cannot feed {by_identity[id(tensor)][0]!r}: {call.entry.name!r} changes this tensor in "
                    f"place. Feed {call.entry.tensor(0)!r} instead."
                )

    def swap(leaf: Any) -> Any:
        return by_identity[id(leaf)][1] if id(leaf) in by_identity else leaf

    return pytree.tree_map(swap, tuple(args)), pytree.tree_map(swap, dict(kwargs))
