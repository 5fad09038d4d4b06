"""How much memory this process may use: the machine's, or what its container allows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["memory_limit"]


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes of memory this process and those it shares a container with may use.

    Args:
        root: of the file system.

    >>> memory_limit() > 0
    True
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_control_group_limits(root)])


def _control_group_limits(root: Path) -> Iterator[int]:
    """The limits of the groups this process is in, and of those around them; version 2 and version 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, controllers_and_path = line.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        if not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # A container may see the path of its host but only its own part of the tree: what is not there is skipped.
        group = top / path.strip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(top):
                yield from _number_in(directory / name)


def _number_in(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdecimal() and int(text) > 0:  # else "max"
        yield int(text)
