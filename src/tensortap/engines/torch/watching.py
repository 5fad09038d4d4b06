"""Watched tensors on their way out: from live PyTorch tensors to views that debug ops can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tensortap.engines.torch.values import dtype_name
from tensortap.ops.view import TensorView
from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.sink.publisher import Publisher

__all__ = ["Watching", "view_of"]


class Watching:
    """Shows the watched tensors of one run to its publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._wants = publisher.wants

    def tap(self, node: Node, slot: int, tensor: torch.Tensor) -> None:
        """Called for every tensor of the run."""
        wanted = self._wants(node, slot)
        if wanted is not None:
            self._publisher.publish(wanted, node, slot, view_of(tensor), node.device)

    def finish(self, nodes: Sequence[Node], error: str | None) -> None:
        """The run is over."""
        self._publisher.finish(nodes, error)


def view_of(tensor: torch.Tensor) -> TensorView:
    """The memory of a tensor as debug ops read it, without a copy if it is dense, plain and on the CPU.

    Of a sparse tensor only the values are seen, of a nested one all of them in a row: what is not stored
    cannot be wrong.
    """
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        tensor = tensor.values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    if tensor.device.type == "meta":
        return TensorView(0, dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride(), None)
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    return TensorView(
        tensor.data_ptr(), dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor
    )
