"""What the system says about processes: whether one lives, since when, who started it and what it has loaded.

All of it is read from `/proc`; where there is none, nothing is known, and None says so.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Status", "command_of", "has_loaded", "machine", "process_numbers", "status_of"]

_PROC = Path("/proc")


class Status(NamedTuple):
    """One process.

    Attributes:
        state: a letter, as in `ps`: `Z` is a process that is over, `T` one that is stopped.
        parent: number of the process that started it.
        start: clock ticks from the boot of the machine to its start; with the number, it names one process for good.
    """

    state: str
    parent: int
    start: int

    @property
    def is_over(self) -> bool:
        """Whether only its exit status is left."""
        return self.state in ("Z", "X")


def status_of(process: int) -> Status | None:
    """The status of a process, None if there is no such process or no way to know.

    >>> import os
    >>> status_of(os.getpid()).parent == os.getppid()
    True
    """
    try:
        text = (_PROC / str(process) / "stat").read_bytes()
        fields = text.rpartition(b")")[2].split()
        return Status(fields[0].decode(), int(fields[1]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def process_numbers() -> set[int] | None:
    """Numbers of all processes, None if there is no way to know."""
    try:
        return {int(name) for name in os.listdir(_PROC) if name.isdecimal()} or None
    except OSError:
        return None


def command_of(process: int) -> tuple[str, ...]:
    """The command line of a process, empty if it is over or not ours to see."""
    try:
        text = (_PROC / str(process) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode("utf-8", "replace") for part in text.rstrip(b"\0").split(b"\0")) if text else ()


def has_loaded(process: int, library: str) -> bool:
    """Whether a process has loaded a library whose file name begins like this."""
    try:
        return f"/{library}".encode() in (_PROC / str(process) / "maps").read_bytes()
    except OSError:
        return False


@cache
def machine() -> str:
    """Names this machine since its last boot, and the container whose process numbers we use; empty if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""
