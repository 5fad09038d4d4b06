"""Which gradients hold what a step has applied already, and which tensors the loss leads to."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from tensortap.engines.torch.updates.looks import native
from tensortap.engines.torch.updates.samples import sample_of

__all__ = ["AppliedGradients", "leaves_behind"]

MOST_NODES = 20_000
"""Of autograd that are walked through; what a larger graph leads to is not known."""


def leaves_behind(outputs: Iterable[Any]) -> dict[int, torch.Tensor] | None:
    """The tensors that a backward pass from these gives gradients to, by identity; None if there is too much to walk.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> list(leaves_behind([(weight * 2).sum()]).values())
    [tensor([1., 1.], requires_grad=True)]
    """
    outputs = list(outputs)
    find = native("tt_leaves")
    if find is not None and all(isinstance(each, torch.Tensor) for each in outputs):
        leaves = find(outputs, MOST_NODES)
        return None if leaves is None else {id(leaf): leaf for leaf in leaves}
    return _leaves_walked_to(outputs)


def _leaves_walked_to(outputs: list[Any]) -> dict[int, torch.Tensor] | None:
    """The same without the observer's library, or from edges of the graph."""
    found: dict[int, torch.Tensor] = {}
    pending: list[Any] = []
    for output in outputs:
        node = (
            getattr(output, "grad_fn", None)
            if isinstance(output, torch.Tensor)
            else getattr(output, "node", None)
        )
        if node is not None:
            pending.append(node)
        elif isinstance(output, torch.Tensor) and output.requires_grad:
            found[id(output)] = output
    seen: set[Any] = set(pending)
    while pending:
        node = pending.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found[id(leaf)] = leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
        if len(seen) > MOST_NODES:
            return None
    return found


class AppliedGradients:
    """Follows gradients from the step that applies them to the next one: whether anything clears them between.

    A gradient is cleared if it is taken away, replaced, or changed by anything but backward passes. What a program does
    after the last backward pass before a step (clipping, unscaling) is not looked at: it works on the sum.
    """

    def __init__(self) -> None:
        self._followed: dict[int, _Applied] = {}

    def after_step(self, parameters: Iterable[torch.Tensor]) -> None:
        """These were updated with the gradients they have."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None or not _is_plain(gradient):
                self._followed.pop(id(parameter), None)
            else:
                self._followed[id(parameter)] = _Applied(parameter, gradient)

    def before_backward(self) -> None:
        """A backward pass begins: what has not been cleared now will be added to."""
        for key, applied in list(self._followed.items()):
            if not applied.is_still_there():
                del self._followed[key]
            else:
                applied.is_added_to = True

    def after_backward(self) -> None:
        """It is over."""
        for applied in self._followed.values():
            applied.remember()

    def is_stale(self, parameter: torch.Tensor) -> bool:
        """Whether the gradient of a parameter holds an applied one besides a new one."""
        applied = self._followed.get(id(parameter))
        if applied is None or not applied.is_added_to:
            return False
        gradient = parameter.grad
        return gradient is not None and gradient._cdata == applied.address

    def forget(self) -> None:
        """Follow none of them."""
        self._followed.clear()


class _Applied:
    """A gradient that was applied, known by where it is and how often it was written."""

    __slots__ = ("_parameter", "_version", "address", "is_added_to")

    def __init__(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        self._parameter = weakref.ref(parameter)
        self.address: int = gradient._cdata
        self._version = gradient._version
        self.is_added_to = False

    def is_still_there(self) -> bool:
        gradient = self._gradient()
        if gradient is None or gradient._cdata != self.address or gradient._version != self._version:
            return False
        sample = sample_of(gradient)  # `.data.zero_()` leaves no trace in the version
        return sample is not None and bool(sample.any())

    def remember(self) -> None:
        gradient = self._gradient()
        if gradient is not None:
            self._version = gradient._version

    def _gradient(self) -> torch.Tensor | None:
        parameter = self._parameter()
        return None if parameter is None else parameter.grad


def _is_plain(gradient: torch.Tensor) -> bool:
    return not gradient.is_sparse and not gradient.is_inference()
