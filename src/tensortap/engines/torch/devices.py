"""Devices under the one spelling all engines share."""

from __future__ import annotations

import torch

from tensortap.records import Device, device_name
from tensortap.seam import place

__all__ = ["list_devices", "name_of", "rank"]

_HAS_GROUPS = torch.distributed.is_available()
_names: dict[tuple[torch.device, int], str] = {}


def rank() -> int:
    """Rank of this process in a distributed job; otherwise the number by which it is known."""
    group = torch.distributed
    if _HAS_GROUPS and group.is_initialized() and group.get_world_size() > 1:
        return group.get_rank()
    return place.number()


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
