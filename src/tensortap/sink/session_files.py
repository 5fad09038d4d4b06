"""What all runs under one session root share while they are written."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from tensortap.records import Node, RunInfo
from tensortap.sink.base import by_device
from tensortap.store.content import ContentStore
from tensortap.store.health import HealthLog
from tensortap.store.layout import write_marker
from tensortap.store.writer import RunWriter

__all__ = ["SessionFiles", "files_of"]


class SessionFiles:
    """What the runs under one root share: stored graphs and sources, and the health history.

    >>> import tempfile
    >>> files = SessionFiles(tempfile.mkdtemp())
    >>> files.writer(files.root / "run_17_0", RunInfo(0, 0, 17)).path.name
    'run_17_0'
    """

    def __init__(self, root: str | Path, *, fsync: bool = False) -> None:
        self.root = Path(root)
        self._fsync = fsync
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._marked = False
        self._content = ContentStore(self.root)
        self._health: dict[int, HealthLog] = {}
        self._described_nodes: list[Node] = []
        self._description: tuple[dict[str, list[Node]], tuple[str, ...]] = ({}, ())

    def writer(self, run_dir: Path, info: RunInfo) -> RunWriter:
        """A writer for one run; called in the writer thread."""
        if os.getpid() != self._pid:
            # An open SQLite file must not be used, nor closed, on the other side of a fork.
            _left_to_the_parent.append(self._health)
            self._start()
        if not self._marked:
            self.root.mkdir(parents=True, exist_ok=True)
            write_marker(self.root)
            self._marked = True
        if info.task not in self._health:
            self._health[info.task] = HealthLog(self.root, info.task)
        health = self._health[info.task]
        return RunWriter(run_dir, info, content=self._content, health=health, fsync=self._fsync)

    def described(self, nodes: Sequence[Node]) -> tuple[dict[str, list[Node]], tuple[str, ...]]:
        """The nodes by device, and the user's files they come from; for the same nodes as last time, from memory."""
        listed = list(nodes)
        if listed != self._described_nodes:
            stacks = {id(node.stack): node.stack for node in listed}  # which most nodes share
            files = tuple({frame.file: None for stack in stacks.values() for frame in stack})
            self._description = (by_device(listed), files)
            self._described_nodes = listed
        return self._description

    def close(self) -> None:
        """Close the health history; writing opens it again."""
        for health in self._health.values():
            health.close()


_left_to_the_parent: list[object] = []

_by_root: dict[tuple[int, Path], SessionFiles] = {}
_by_root_lock = threading.Lock()
_ROOTS_KEPT = 8


def files_of(root: Path) -> SessionFiles:
    """The files of a root that no debug session owns; the few used last are remembered."""
    key = (os.getpid(), root)
    with _by_root_lock:
        files = _by_root.pop(key, None) or SessionFiles(root)
        _by_root[key] = files
        if len(_by_root) > _ROOTS_KEPT:
            _by_root.pop(next(iter(_by_root)))
        return files
