"""What a session root holds, read from names alone."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tensortap.store.format import DumpFormatError
from tensortap.store.layout import check_marker, health_path, parse_run_name

__all__ = ["health_files", "list_runs"]


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
