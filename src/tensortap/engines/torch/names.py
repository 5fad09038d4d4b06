"""The names of a PyTorch session, and what has to be remembered with them from run to run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tensortap.engines.observe.names import NameTable
from tensortap.engines.torch.places import Survivors

__all__ = ["RunNames"]


class RunNames(NameTable):
    """Names by scope, op and count; and the bad values of earlier runs that may still be used.

    Attributes:
        survivors: those bad values.
        is_unwritten: tells whether nobody has written yet to a tensor that the present run has made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.survivors = Survivors()
        self.is_unwritten: Callable[[torch.Tensor], bool] = lambda tensor: False
