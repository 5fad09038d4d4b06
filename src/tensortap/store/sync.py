"""Getting files to the disk itself, for those who want a run to outlive the machine and not only the process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["sync_files", "sync_folders"]


def sync_files(paths: Iterable[Path]) -> None:
    """Wait until the contents of these files are on the disk; those that are gone need no waiting.

    Raises:
        OSError: the disk reports that it failed.
    """
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            _sync(path)


def sync_folders(paths: Iterable[Path]) -> None:
    """The same for the names in folders. Some network file systems cannot, and the contents are safe by then."""
    for path in paths:
        with contextlib.suppress(OSError):
            _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
