"""Devices, spelled the same on every engine."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Device", "device_name"]


@dataclass(frozen=True, slots=True)
class Device:
    """One device a session can place nodes on.

    >>> Device(device_name("cpu"), "CPU").name
    '/job:localhost/replica:0/task:0/device:CPU:0'
    """

    name: str
    device_type: str
    memory_limit_bytes: int = 0
    incarnation: int = 0


def device_name(kind: str, index: int = 0, *, rank: int = 0, job: str = "localhost") -> str:
    """The full name of a device, spelled the same on every engine.

    >>> device_name("cpu")
    '/job:localhost/replica:0/task:0/device:CPU:0'
    """
    return f"/job:{job}/replica:0/task:{rank}/device:{kind.upper()}:{index}"
