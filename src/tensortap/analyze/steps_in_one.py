"""Functions of one tensor that a runtime executes in one: which of them made the bad value.

Nobody sees what is between them. It is worked out from what the first was given, if that was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["BadStep", "first_bad_step"]

Array = npt.NDArray[Any]

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "inv": np.reciprocal,
    "log": np.log,
    "log1p": np.log1p,
    "neg": np.negative,
    "reciprocal": np.reciprocal,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "rint": np.rint,
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "selu": lambda x: (
        1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
    ),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
}


class BadStep(NamedTuple):
    """The step that made a bad value of good ones.

    Attributes:
        place: which of the steps.
        given: what it was given.
    """

    place: int
    given: Array


def first_bad_step(steps: Sequence[str], value: Array) -> BadStep | None:
    """The first of several functions whose result is not finite; None if that cannot be told.

    Args:
        steps: their names, in the order of execution.
        value: what the first is given.

    >>> first_bad_step(["Relu", "Log"], np.array([-1.0, 2.0]))
    BadStep(place=1, given=array([0., 2.]))
    """
    with np.errstate(all="ignore"):
        for place, step in enumerate(steps):
            function = _FUNCTIONS.get(step.lower())
            if function is None:
                return None
            made = np.asarray(function(value)).astype(value.dtype)
            if not np.isfinite(made).all():
                return BadStep(place, value)
            value = made
    return None
