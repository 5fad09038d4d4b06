"""Which part of a tensor this rank holds, as a `DTensor` says it. Nothing is communicated."""

from __future__ import annotations

import sys
from typing import Any

import torch

from tensortap.records.shard import Shard

__all__ = ["shard_of"]


_MOST = 10_000

_known: dict[int, tuple[Any, Shard | None]] = {}
"""What specifications say, by their identity: to work it out takes as long as some operations."""


def shard_of(tensor: torch.Tensor) -> Shard | None:
    """The part of the whole that a tensor is on this rank; None for a tensor that is no part of anything."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(tensor, getattr(module, "DTensor", ())):
        return None
    spec: Any = getattr(tensor, "_spec", None)
    known = _known.get(id(spec))
    if known is not None:
        return known[1]
    if len(_known) >= _MOST:
        _known.clear()
    shard = _said_by(spec)
    _known[id(spec)] = spec, shard  # which keeps it alive, and its identity its own
    return shard


def _said_by(spec: Any) -> Shard | None:
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
