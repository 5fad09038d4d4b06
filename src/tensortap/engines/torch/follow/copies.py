"""Checksums of what this rank holds copies of: gradients, parameters, buffers. Memory is read, nothing else."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from tensortap.engines.torch.memory import asking_no_class, readable
from tensortap.engines.torch.program import Program
from tensortap.engines.torch.shards import shard_of
from tensortap.records.copies import BUFFER, GRADIENT, PARAMETER, Copied
from tensortap.records.shard import Shard
from tensortap.store.checksum import crc32c

__all__ = ["copies", "sums"]


@asking_no_class
def sums(program: Program) -> dict[Copied, int]:
    """The checksums of all that can be read."""
    found: dict[Copied, int] = {}
    for copied, tensor in copies(program):
        value = checksum(tensor)
        if value is not None:
            found[copied] = value
    return found


def copies(program: Program) -> Iterator[tuple[Copied, torch.Tensor]]:
    """What of a program's state other ranks may have, too, each parameter after its gradient."""
    meant, sliced = _wrapped(program)
    for path, parameter in program.parameters():
        shard = shard_of(parameter)
        if shard is None and id(parameter) in sliced:
            continue
        if _is_summand(shard):
            continue
        part = meant.get(id(parameter), "") if shard is None else shard.key
        is_meant = shard is not None or id(parameter) in meant
        # Under sequence parallelism gradients of norms are summands, until the optimizer has them added up.
        if parameter.grad is not None and not _is_summand(shard_of(parameter.grad)):
            yield Copied(GRADIENT, path, part, is_meant), parameter.grad
        yield Copied(PARAMETER, path, part, is_meant), parameter
    for path, buffer in program.buffers():
        yield Copied(BUFFER, path), buffer


def _is_summand(shard: Shard | None) -> bool:
    """Whether the whole is a sum, of which each rank has a part that is its own."""
    return shard is not None and not all(each.startswith(("Shard", "Replicate")) for each in shard.placement)


def _wrapped(program: Program) -> tuple[dict[int, str], set[int]]:
    """Parameters that DDP keeps the same, with the ranks if these are not all; those that FSDP of old has sliced."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    meant: dict[int, str] = {}
    sliced: set[int] = set()
    for root in program.modules.values():
        for module in root.modules():
            if isinstance(module, DistributedDataParallel):
                ignored = set(getattr(module, "parameters_to_ignore", ()))
                group = _group_of(module)
                for name, each in module.module.named_parameters():
                    if name not in ignored:
                        meant[id(each)] = group
            elif isinstance(module, FullyShardedDataParallel):
                sliced.update(map(id, module.parameters()))
    return meant, sliced


def _group_of(module: DistributedDataParallel) -> str:
    """The ranks among which a model is the same; empty for all of them. Other groups may have other weights."""
    ranks = torch.distributed.get_process_group_ranks(module.process_group)
    return (
        "" if len(ranks) == torch.distributed.get_world_size() else f"of ranks {', '.join(map(str, ranks))}"
    )


def checksum(tensor: torch.Tensor) -> int | None:
    """Equal for equal bits; None for what cannot be read, or is not dense."""
    elements = readable(tensor)
    if (
        elements is None
        or elements.layout is not torch.strided
        or elements.is_quantized
        or elements.is_nested
    ):
        return None
    if not elements.is_cpu:
        return _checksum_on_device(elements)
    if not elements.is_contiguous():
        elements = elements.detach().contiguous()
    nbytes = elements.numel() * elements.element_size()
    if not nbytes:
        return 0
    return crc32c((ctypes.c_char * nbytes).from_address(elements.data_ptr()))


def _checksum_on_device(tensor: torch.Tensor) -> int | None:
    """The same where the memory is another's: its own reduction, and one number copied."""
    reduce: Any = getattr(torch, "hash_tensor", None)
    if reduce is None:
        return None
    value = int(reduce(tensor.detach()).item())
    return (value ^ value >> 32) & 0xFFFFFFFF
