"""Which parameters, buffers and optimizer states hold NaN or infinities: one pass over each, no copy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tensortap.engines.torch.program import Program
from tensortap.seam.base import NonFinite

__all__ = ["non_finite_state"]


def non_finite_state(program: Program) -> Iterator[NonFinite]:
    """What of a program's state is not finite."""
    paths: dict[int, str] = {}
    for name, parameter in program.parameters():
        paths[id(parameter)] = name
        if worst := _worst(parameter):
            yield NonFinite(name, "parameter", math.isnan(worst), parameter.requires_grad)
    for name, buffer in program.buffers():
        if worst := _worst(buffer):
            yield NonFinite(name, "buffer", math.isnan(worst), trained=False)
    for optimizer in program.optimizers.values():
        for _, name, state in program.optimizer_state(optimizer, paths):
            if worst := _worst(state):
                yield NonFinite(name, "optimizer state", math.isnan(worst))


def _worst(tensor: torch.Tensor) -> float:
    """NaN or infinity if the tensor holds one, else 0; also 0 for what cannot be looked at."""
    try:
        with torch.no_grad():
            found = [_worst_of_strided(part) for part in _parts(tensor.detach())]
    except Exception:
        return 0.0  # a subclass may refuse anything; that is no reason to call the others good
    return next((each for each in found if math.isnan(each)), max(found, default=0.0))


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The ordinary tensors of this process that a tensor consists of."""
    local = getattr(tensor, "to_local", None)
    if callable(local):
        # Asking a distributed tensor itself would be a collective, which the other ranks do not take part in.
        yield from _parts(local())
    elif hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _parts(getattr(tensor, name))
    elif tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        yield tensor.values()
    elif tensor.layout == torch.sparse_coo:
        yield tensor._values()
    elif tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized:
        yield tensor


def _worst_of_strided(tensor: torch.Tensor) -> float:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    if tensor.itemsize == 1:
        tensor = tensor.float()  # no arithmetic on eight bits
    low, high = (float(each) for each in tensor.aminmax())
    if math.isnan(low) or math.isnan(high):
        return math.nan
    return math.inf if math.isinf(low) or math.isinf(high) else 0.0
