"""The updates of one task: a line of JSON for each that was looked at, appended, and so readable while it grows."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tensortap.records import Update
from tensortap.store.layout import updates_path

__all__ = ["GrowingUpdates", "UpdateLog", "read_updates", "tasks_with_updates"]

MOST_BYTES = 64 << 20
"""Of one task. Engines look at ever fewer updates, so that only programs with very many optimizers come near it."""

MOST_REMEMBERED = 16 << 20
"""Bytes at the beginning of a growing file that are not read again."""


class UpdateLog:
    """Appends updates; the file is made with the first.

    Args:
        root: the session directory.
        task: asked for the rank when there is something to write.

    Attributes:
        written: how many there are.
        dropped: how many had no room.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = UpdateLog(Path(folder))
    ...     log.add(Update(0, "SGD", 0))
    ...     log.close()
    ...     [each.optimizer for each in read_updates(Path(folder), 0)]
    ['SGD']
    """

    def __init__(self, root: Path, task: Callable[[], int] = lambda: 0) -> None:
        self._root = root
        self._task = task
        self._file: Any = None
        self._lock = threading.Lock()
        self._bytes = 0
        self.written = 0
        self.dropped = 0

    def add(self, update: Update) -> None:
        """Append one."""
        line = json.dumps(update.as_dict(), separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._bytes + len(line) > MOST_BYTES:
                self.dropped += 1
                return
            if self._file is None:
                path = updates_path(self._root, self._task())
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("ab", buffering=0)
            self._file.write(line)
            self._bytes += len(line)
            self.written += 1

    def close(self) -> None:
        """No more updates; harmless when called again."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def tasks_with_updates(root: Path) -> list[int]:
    """The tasks that have written updates."""
    names = (path.stem.removeprefix("task_") for path in updates_path(root, 0).parent.glob("task_*.jsonl"))
    return sorted(int(name) for name in names if name.isdecimal())


def read_updates(root: Path, task: int) -> list[Update]:
    """The updates of a task, in their order; what cannot be read, as a line that is being written, is left out."""
    return GrowingUpdates(root).of(task)


class GrowingUpdates:
    """The updates of a session that is being written: each is read once, however often somebody asks.

    Args:
        root: the session directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[int, tuple[int, list[Update]]] = {}  # by task: how far, and what was there

    def of(self, task: int) -> list[Update]:
        """Those of a task that there are now, in their order, without what cannot be read."""
        position, known = self._read.get(task, (0, []))
        try:
            with updates_path(self.root, task).open("rb") as file:
                if file.seek(0, os.SEEK_END) < position:  # another file
                    position, known = 0, []
                file.seek(position)
                content = file.read(2 * MOST_BYTES + 1 - position)
        except OSError:
            return []
        if position + len(content) > 2 * MOST_BYTES:
            return []
        whole, newline, begun = content.rpartition(b"\n")
        known = [*known, *_updates_in(whole)]
        end = position + len(whole) + len(newline)
        if end <= MOST_REMEMBERED:
            self._read[task] = (end, known)
        return [*known, *_updates_in(begun)]


def _updates_in(content: bytes) -> Iterator[Update]:
    for line in content.splitlines():
        try:
            yield Update.from_dict(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
