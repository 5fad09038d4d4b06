"""The allocator of a process that is a server and nothing else."""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["reuse_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of `mallopt`, in the GNU C library."""


def reuse_memory() -> None:
    """Have the allocator keep what it frees, up to 256 MB.

    Chunks of 4 MB come and go, and fresh pages cost more than copies. It holds for the whole process, so it is
    not for a server in a notebook.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, 64 << 20)
        library.mallopt(_TRIM_THRESHOLD, 256 << 20)
