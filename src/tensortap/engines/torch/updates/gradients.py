"""Which gradients hold what a step has applied already, and which tensors the loss leads to."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from tensortap.engines.torch.memory import is_ordinary
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
        self._applied: list[
            _AppliedAtOnce
        ] = []  # of which it is not known yet which stay until a backward pass

    def after_step(self, parameters: list[torch.Tensor]) -> None:
        """These were updated with the gradients they have."""
        self._applied.append(_AppliedAtOnce(parameters))

    def before_backward(self) -> None:
        """A backward pass begins: what has not been cleared now will be added to."""
        applied, self._applied = self._applied, []
        for step in applied:
            if self._followed:
                for parameter in step.ids:
                    self._followed.pop(parameter, None)
            self._followed.update((id(parameter), each) for parameter, each in step.still_there())
        for key, each in list(self._followed.items()):
            if not each.is_still_there():
                del self._followed[key]
            else:
                each.is_added_to = True

    def after_backward(self) -> None:
        """It is over."""
        for applied in self._followed.values():
            applied.remember()

    def are_stale(self, parameters: list[torch.Tensor]) -> list[bool]:
        """Whether the gradient of each parameter holds an applied one besides a new one."""
        if not self._followed:
            return [False] * len(parameters)
        return [self._is_stale(each) for each in parameters]

    def _is_stale(self, parameter: torch.Tensor) -> bool:
        applied = self._followed.get(id(parameter))
        if applied is None or not applied.is_added_to:
            return False
        gradient = parameter.grad
        return gradient is not None and gradient._cdata == applied.address

    def forget(self) -> None:
        """Follow none of them."""
        self._followed.clear()
        self._applied.clear()


class _AppliedAtOnce:
    """The gradients that one step has applied: most are taken away before anything asks for them."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.ids = list(map(id, parameters))
        self._parameters = list(map(weakref.ref, parameters))
        self._gradients = _gradients_of(parameters)

    def still_there(self) -> Iterator[tuple[torch.Tensor, _Applied]]:
        """Those that are where they were, as often written."""
        alive = [(place, each) for place, ref in enumerate(self._parameters) if (each := ref()) is not None]
        before = self._gradients[[place for place, _ in alive]]
        now = _gradients_of([each for _, each in alive])
        for number in np.flatnonzero((before == now).all(axis=1) & (now[:, 0] != 0)).tolist():
            place, parameter = alive[number]
            yield parameter, _Applied(self._parameters[place], *now[number].tolist())


def _gradients_of(parameters: list[torch.Tensor]) -> np.ndarray[Any, Any]:
    """Of the gradient of each: where it is, 0 if there is none that could be followed, and how often it was written."""
    found = np.zeros((len(parameters), 2), np.int64)
    find = native("tt_gradients")
    if find is not None and all(map(is_ordinary, parameters)):
        find(parameters, found.ctypes.data)
        return found
    for place, parameter in enumerate(parameters):
        gradient = parameter.grad
        if gradient is not None and _is_plain(gradient):
            found[place] = gradient._cdata, gradient._version
    return found


class _Applied:
    """A gradient that was applied, known by where it is and how often it was written."""

    __slots__ = ("_parameter", "_version", "address", "is_added_to")

    def __init__(self, parameter: weakref.ref[torch.Tensor], address: int, version: int) -> None:
        self._parameter = parameter
        self.address = address
        self._version = version
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
