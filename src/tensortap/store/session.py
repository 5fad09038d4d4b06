"""What a session root holds, read from names and sizes alone, and how a run is taken out of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

from tensortap.errors import DumpFormatError
from tensortap.records import RunInfo
from tensortap.store.description import RunDescription, read_description
from tensortap.store.layout import DESCRIPTION, check_marker, health_path, parse_run_name

__all__ = ["health_files", "list_runs", "remove_run", "run_size", "session_size", "withdraw_run"]


def list_runs(root: Path) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Name, timestamp and number of every run in the order of time, and what is odd about the root.

    Raises:
        OSError: there is no such directory.
        DumpFormatError: it was written by a newer version.
    """
    notices = []
    if not root.is_dir():
        raise NotADirectoryError(f"Session directory {root} does not exist.")
    try:
        check_marker(root)
    except DumpFormatError as error:
        if "newer" in str(error):
            raise
        notices.append(str(error))
    runs = []
    with os.scandir(root) as entries:
        for entry in entries:
            found = parse_run_name(entry.name)
            if found and entry.is_dir(follow_symlinks=False):
                runs.append((entry.name, *found))
    runs.sort(key=lambda run: run[1:])
    return runs, notices


def health_files(root: Path) -> dict[int, Path]:
    """The health history of every task that has one."""
    folder = health_path(root, 0).parent
    found = {}
    for path in folder.glob("task_*.sqlite3"):
        number = re.fullmatch(r"task_(\d{1,9})\.sqlite3", path.name)
        if number and path.is_file() and not path.is_symlink():
            found[int(number[1])] = path
    return found


def run_size(run_dir: Path) -> int:
    """Bytes of all files of a run; what is being deleted meanwhile counts as nothing."""
    size = 0
    with contextlib.suppress(OSError), os.scandir(run_dir) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_size
    return size


def session_size(root: Path) -> int:
    """Bytes of all that a session holds: runs, and the graphs, sources and histories that they share."""
    folders = [root / name for name, _, _ in list_runs(root)[0]]
    folders += [root / name for name in ("graphs", "sources", "health", "processes")]
    return sum(map(run_size, folders))


def remove_run(run_dir: Path) -> None:
    """Delete a run directory. Its pills stay in the health history."""
    # Renamed first, so that no reader opens a half-deleted run.
    doomed = run_dir.with_name(f".{run_dir.name}.{time.monotonic_ns()}")
    with contextlib.suppress(FileNotFoundError):
        os.replace(run_dir, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def withdraw_run(run_dir: Path, info: RunInfo) -> None:
    """Take back a directory that was made for a run which never began, if there is nothing else in it."""
    with contextlib.suppress(OSError, ValueError):
        entries = os.listdir(run_dir)
        if entries == [DESCRIPTION] and read_description(run_dir) == RunDescription(info):
            (run_dir / DESCRIPTION).unlink()
            entries = []
        if not entries:
            run_dir.rmdir()
