"""Showing one tensor to the publisher of a run, with the places of its values if it is sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensortap.engines.tensors import Tensors
from tensortap.ops.debug_ops import DebugIdentity, DebugIndices
from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.sink.publisher import Publisher
    from tensortap.watch.plan import Wanted

__all__ = ["publish_whole"]

_INDICES = DebugIndices()


def publish_whole(
    tensors: Tensors,
    publisher: Publisher,
    wanted: Wanted,
    node: Node,
    slot: int,
    tensor: Any,
    timestamp: int,
) -> None:
    """Have the wanted debug ops executed on a tensor.

    Of a sparse tensor only the stored values are recorded. Which row and column each of them is in is recorded beside
    them, as `DebugIndices`, so that a bad one can be named as the program knows it.
    """
    publisher.publish(wanted, node, slot, tensors.view_of(tensor), node.device, timestamp)
    whole = [positions for op, positions in wanted if isinstance(op, DebugIdentity)]
    coordinates = tensors.coordinates_of(tensor) if whole else None
    if coordinates is not None:
        publisher.publish(((_INDICES, whole[0]),), node, slot, coordinates, node.device, timestamp)
