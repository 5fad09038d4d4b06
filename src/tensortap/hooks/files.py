"""Replacing a file so that a crash at any moment leaves either the old content or the new, complete."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

__all__ = ["replace_file", "temporary_siblings"]


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file under a temporary name next to `path`, then put it in place of `path`.

    Both the file and the directory are synchronised to disk, so the new name survives a power failure.

    Args:
        path: the final name.
        write: writes the content to the path it is given.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write(temporary)
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    # Some network file systems cannot synchronise a directory; the file itself is safe by then.
    with contextlib.suppress(OSError):
        _sync(path.parent)


def temporary_siblings(directory: Path, prefix: str) -> list[Path]:
    """Temporary files that crashed writers of files named `prefix…` left behind."""
    return sorted(directory.glob(f".{prefix}*.tmp"))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
