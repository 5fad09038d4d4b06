"""A look at what an optimizer has just done, for steps that are not watched: is everything still finite?

Gradients and parameters are read once, without an operation of PyTorch, so that nothing of the program is touched. A
NaN in the step shows in the gradients; an infinity that an optimizer makes itself, in the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.optim import Optimizer

from tensortap.engines.torch.memory import asking_no_class, readable
from tensortap.engines.torch.script.updates import is_bad
from tensortap.errors import NativeBuildError

__all__ = ["first_bad"]


@asking_no_class
def first_bad(optimizer: Optimizer) -> tuple[torch.Tensor, bool] | None:
    """The first parameter that has a NaN or an infinity, or whose gradient has one (then True); None if all is well."""
    found = list(_tensors(optimizer))
    number = _first_bad_of([tensor for tensor, _, _ in found])
    return None if number is None else found[number][1:]


def _tensors(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, torch.Tensor, bool]]:
    """What can be read of each gradient and parameter, on this process."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for tensor, is_gradient in ((parameter.grad, True), (parameter, False)):
                elements = None if tensor is None else readable(tensor)
                if elements is not None:
                    yield elements._values() if elements.is_sparse else elements, parameter, is_gradient


def _first_bad_of(tensors: list[torch.Tensor]) -> int | None:
    try:
        from tensortap.engines.torch.native.library import library

        number: int = library().tt_first_not_finite(tensors)
    except NativeBuildError:
        number = -2
    if number != -2:
        return None if number < 0 else number
    return next(
        (i for i, each in enumerate(tensors) if is_bad(each)), None
    )  # some do not lie there as they are
