"""Session directories that came as archives: unpacked into a temporary directory, for as long as the command runs."""

from __future__ import annotations

import atexit
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tensortap.errors import UsageError

__all__ = ["is_archive", "unpacked"]

_ENDINGS = (".tar.gz", ".tgz", ".tar", ".tar.xz", ".tar.bz2", ".zip")

_MARKERS = ("tensortap.json", "processes", "graphs")

_ROOM_LEFT = 256 << 20
"""Bytes that must stay free on the disk: an archive may hold far more than its own size."""


def is_archive(path: Path) -> bool:
    """Whether a path names an archive.

    >>> is_archive(Path("node1.tar.gz"))
    False
    """
    return path.name.lower().endswith(_ENDINGS) and path.is_file()


def unpacked(path: Path) -> Path:
    """The session directory in an archive, as files of a temporary directory that is removed at the end.

    Raises:
        UsageError: it cannot be read, does not fit on the disk, or holds no session, or several.
    """
    target = Path(tempfile.mkdtemp(prefix="tensortap-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    try:
        _unpack(path, target)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, ValueError, RuntimeError) as error:
        raise UsageError(f"The archive {str(path)!r} cannot be unpacked: {error}.") from error
    found = list(_sessions(target))
    if len(found) != 1:
        names = ", ".join(str(each.relative_to(target)) for each in found[:3])
        what = f"{len(found)} session directories ({names})" if found else "no session directory"
        raise UsageError(f"The archive {str(path)!r} holds {what}; one is needed.")
    return found[0]


def _unpack(path: Path, target: Path) -> None:
    room = shutil.disk_usage(target).free - _ROOM_LEFT
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _check_room(sum(each.file_size for each in archive.infolist()), room)
            archive.extractall(target)  # which takes '..' and leading slashes out of names
        return
    with tarfile.open(path) as tar:
        _check_room(sum(each.size for each in tar), room)
        tar.extractall(target, filter="data")  # refuses links and names that lead out of it


def _check_room(needed: int, room: int) -> None:
    if needed > room:
        raise ValueError(f"its files take {needed} bytes, and there is room for {max(room, 0)}")


def _sessions(folder: Path, depth: int = 4) -> Iterator[Path]:
    names = set(os.listdir(folder))
    if names.intersection(_MARKERS) or any(name.startswith("run_") for name in names):
        yield folder
        return
    if depth:
        for name in sorted(names):
            if (folder / name).is_dir():
                yield from _sessions(folder / name, depth - 1)
