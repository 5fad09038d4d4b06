"""Where the stored values of a sparse tensor belong.

Of a sparse tensor only the stored values are recorded. Which row and column each of them is in is recorded beside
them, as `DebugIndices`, so that a bad one can be named as the program knows it.
"""

from __future__ import annotations

import torch

from tensortap.engines.torch.values import view_of
from tensortap.ops.view import TensorView

__all__ = ["coordinates_of", "places_of"]


def places_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Coordinates of the stored values, in the order `view_of` shows them: a column for each, or for each block the
    place of its first element. None for dense tensors and for batches of compressed ones.
    """
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().indices()
    if tensor.dim() - tensor.dense_dim() != 2:
        return None
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        rows = _repeated(tensor.crow_indices())
        places = torch.stack([rows, tensor.col_indices().to(torch.int64)])
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        columns = _repeated(tensor.ccol_indices())
        places = torch.stack([tensor.row_indices().to(torch.int64), columns])
    else:
        return None
    if tensor.layout in (torch.sparse_bsr, torch.sparse_bsc):
        block = tensor.values().shape[1:3]
        places = places * torch.tensor(block, device=places.device).unsqueeze(1)
    return places


def coordinates_of(tensor: torch.Tensor) -> TensorView | None:
    """What `places_of` gives, as debug ops read it; None too for what has no values or an unknown layout."""
    if tensor.layout is torch.strided or tensor.is_nested or tensor.is_meta:
        return None
    try:
        places = places_of(tensor.detach())
    except (NotImplementedError, RuntimeError):  # a layout of the future, or values that are not there
        return None
    return None if places is None else view_of(places)


def _repeated(compressed: torch.Tensor) -> torch.Tensor:
    """The row of each stored value, told by where each row begins."""
    counts = compressed.diff()
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
