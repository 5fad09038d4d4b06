"""Which part of a tensor this rank holds, as a `DTensor` says it. Nothing is communicated."""

from __future__ import annotations

import sys
from typing import Any

import torch

from tensortap.records.shard import Shard

__all__ = ["shard_of"]


def shard_of(tensor: torch.Tensor) -> Shard | None:
    """The part of the whole that a tensor is on this rank; None for a tensor that is no part of anything."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(tensor, getattr(module, "DTensor", ())):
        return None
    spec: Any = getattr(tensor, "_spec", None)
    coordinate = None if spec is None else spec.mesh.get_coordinate()
    if coordinate is None:  # of a mesh that this rank is not in
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    whole = tuple(spec.shape)
    shape, offset = compute_local_shape_and_global_offset(whole, spec.mesh, spec.placements)
    sizes = spec.mesh.shape
    names = spec.mesh.mesh_dim_names or tuple(map(str, range(len(sizes))))
    return Shard(
        whole,
        tuple(map(int, offset)),
        tuple(map(int, shape)),
        tuple(_placement(each) for each in spec.placements),
        tuple(f"{name}={size}" for name, size in zip(names, sizes, strict=True)),
        tuple(map(int, coordinate)),
    )


def _placement(placement: Any) -> str:
    if placement.is_shard():
        return f"Shard({placement.dim})"
    return "Replicate()" if placement.is_replicate() else str(placement)
