"""One op of a run, as the recorder knows it between the moment before it runs and the moment after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch.schema import Op

__all__ = ["Call"]


class Call:
    """An op that is being executed.

    Attributes:
        op: its schema.
        args, kwargs: what it is called with.
        tensors: the tensors among its arguments, in order.
        others: all other arguments, as they can be compared.
        inputs: the names of the tensors.
        is_complex: one of them has complex numbers.
        control: the nodes that changed memory of which an input is a view.
        entry: its name.
        forward: in the backward pass, the op it is the gradient of.
        owner: within an optimizer, the parameter it has to do with.
        frame: the user's line that called it.
    """

    __slots__ = (
        "args",
        "control",
        "entry",
        "forward",
        "frame",
        "inputs",
        "is_complex",
        "kwargs",
        "op",
        "others",
        "owner",
        "tensors",
    )

    op: Op
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tensors: list[torch.Tensor]
    others: list[Any]
    inputs: tuple[str, ...]
    is_complex: bool
    control: tuple[str, ...]
    entry: NameEntry
    forward: NameEntry | None
    owner: str | None
    frame: FrameType | None
