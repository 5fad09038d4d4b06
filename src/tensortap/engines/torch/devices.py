"""Devices under the one spelling all engines share."""

from __future__ import annotations

from typing import Any

import torch

from tensortap.records import Device, device_name
from tensortap.seam import place

__all__ = ["list_devices", "name_of", "rank", "world_size"]

_GROUPS: Any = torch.distributed.distributed_c10d if torch.distributed.is_available() else None
"""What `is_initialized` looks at is asked in every run, and so without its three calls."""

_names: dict[tuple[torch.device, int], str] = {}


def rank() -> int:
    """Rank of this process in a distributed job; otherwise the number by which it is known."""
    if _GROUPS is not None and _GROUPS._world.default_pg is not None and _GROUPS.get_world_size() > 1:
        return int(_GROUPS.get_rank())
    return place.number()


def world_size() -> int:
    """How many ranks the job of this process has, as far as PyTorch knows."""
    if _GROUPS is not None and _GROUPS._world.default_pg is not None:
        return int(_GROUPS.get_world_size())
    return 1


def name_of(device: torch.device) -> str:
    """Full name of a torch device."""
    key = (device, rank())
    name = _names.get(key)
    if name is None:
        name = _names[key] = device_name(device.type, device.index or 0, rank=key[1])
    return name


def list_devices() -> list[Device]:
    """The CPU and every accelerator this process can use."""
    found = [torch.device("cpu")]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        if kind is not None:
            found += [torch.device(kind.type, i) for i in range(torch.accelerator.device_count())]
    return [Device(name_of(device), device.type.upper()) for device in found]
