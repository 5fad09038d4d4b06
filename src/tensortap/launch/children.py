"""Noticing processes that a watched program starts, and that use the framework without being watched themselves.

Two ways lead to knowledge, and neither of them touches a program that starts none:

- A **forked** child is a copy of this process. It registers itself in a page of memory that it shares with us, and when
  it trains, or calls a model, it notes that there (`Ledger`; whoever knows the framework calls `note`).
- Of a process that executes **another program** (a spawned worker, a subprocess, the ranks of a launcher) the system
  knows which libraries it has loaded. A thread looks at new descendants of ours (`Children`) until they have loaded the
  framework.

Workers that load data, helpers of the interpreter, launchers, and programs that are watched by tensortap themselves are
told apart. What cannot be known is not claimed: a process that has loaded the framework *may* train.
"""

from __future__ import annotations

import mmap
import os
import shlex
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from tensortap.frameworks import FRAMEWORKS
from tensortap.launch.job import joined
from tensortap.store.processes import UnwatchedChild
from tensortap.store.system import command_of, has_loaded, process_numbers, status_of

__all__ = ["Children", "Ledger", "is_helper", "is_launcher", "is_watched"]

_EVIDENCE = ("", "forked", "made", "model", "trained")
"""What a forked child has noted, by its number."""

_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    *(helper for framework in FRAMEWORKS for helper in framework.helpers),
)
"""In command lines: processes of Python and of frameworks that serve others."""

_LAUNCHERS = {launcher for framework in FRAMEWORKS for launcher in framework.launchers}
"""Programs, and modules behind `-m`, that import a framework only to start others."""

_LIBRARIES = tuple(framework.library for framework in FRAMEWORKS)

_OF_MULTIPROCESSING = ("multiprocessing.spawn", "--multiprocessing-fork")

_FIRST_SECS, _LAST_SECS = 0.2, 1.0
"""How often to look: a framework takes about a second to load, so nothing that trains is missed."""

_YOUNG_SECS = 30.0
"""A process that has not loaded the framework by then is looked at seldom."""


class Ledger:
    """A page of memory shared with all forked children: each has a place in it by the number of its process."""

    _PLACES = 2048
    _PLACE = struct.Struct("=ii")

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, self._PLACES * self._PLACE.size)
        self._owner = os.getpid()
        os.register_at_fork(after_in_child=lambda: self.note("forked"))

    @property
    def is_child(self) -> bool:
        """Whether this process is a forked child of the one that made the ledger."""
        return os.getpid() != self._owner

    def note(self, evidence: str) -> None:
        """In a child: say what it does; what says more is not overwritten."""
        number = _EVIDENCE.index(evidence)
        process = os.getpid()
        place = process % self._PLACES * self._PLACE.size
        known = self._PLACE.unpack_from(self._page, place)
        if known[0] != process or known[1] < number:
            self._PLACE.pack_into(self._page, place, process, number)

    def read(self) -> dict[int, str]:
        """What each forked child has noted."""
        return {
            process: _EVIDENCE[number] for process, number in self._PLACE.iter_unpack(self._page) if process
        }


class Children:
    """Looks after the descendants of this process.

    Args:
        on_unwatched: called, in a thread of ours, with all unwatched children when there are more than before.
        root: the session directory, where children that are watched say so.
    """

    def __init__(self, on_unwatched: Callable[[list[UnwatchedChild]], None], root: Path) -> None:
        self.ledger = Ledger()
        self._root = root
        self._on_unwatched = on_unwatched
        self._owner = os.getpid()
        self._command = command_of(self._owner)
        self._found: dict[int, UnwatchedChild] = {}
        self._parents: dict[int, int] = {}
        self._commands: dict[int, tuple[str, ...]] = {}
        self._watched: set[int] = set()
        self._joined: set[int] = set()
        self._copies: set[int] = set()
        self._started: set[int] = set()
        self._data_workers: set[int] = set()
        self._noticed: dict[int, float] = {}
        self._over = threading.Event()
        self._lock = threading.Lock()

    @property
    def unwatched(self) -> list[UnwatchedChild]:
        """Those found so far."""
        return list(self._found.values())

    def serve_data(self, processes: Iterable[int]) -> None:
        """These children load data."""
        self._data_workers.update(processes)

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._work, name="tensortap-children", daemon=True).start()

    def stop(self) -> None:
        """Look for a last time."""
        self._over.set()
        if os.getpid() == self._owner:
            self._look()

    # ---

    def _work(self) -> None:
        pause = _FIRST_SECS
        while not self._over.wait(pause):
            # As long as there are young children, which may be about to load the framework, often; else seldom.
            pause = _FIRST_SECS if self._look() else min(pause * 1.5, _LAST_SECS)

    def _look(self) -> bool:
        """Look once; whether there are descendants of which not everything is known."""
        with self._lock:
            before = dict(self._found)
            undecided = False
            with suppress(Exception):  # a debugger that cannot look is no reason to disturb anybody
                undecided = self._update()
            if self._found != before:
                with suppress(Exception):
                    self._on_unwatched(self.unwatched)
        return undecided

    def _update(self) -> bool:
        for process in _started_here():
            if process.pid is not None:
                self._started.add(process.pid)
                if "Manager-" in process.name:  # serves objects of multiprocessing to others
                    self.serve_data([process.pid])
        noted = self.ledger.read()
        self._joined = joined(self._root)
        for pid, evidence in noted.items():
            if evidence in ("model", "trained") and pid not in self._joined:
                self._found[pid] = UnwatchedChild(pid, evidence, "fork")
        for pid in (self._data_workers | self._joined) & self._found.keys():
            del self._found[pid]
        living = process_numbers()
        if living is None:
            return self._guess()
        undecided = False
        for pid in self._descendants(living):
            if pid in self._found or pid in self._watched or pid in self._joined:
                continue
            command = command_of(pid)
            if not command or command == self._command:  # over, or not yet, or for good, a copy of us
                continue
            self._commands[pid] = command
            if is_watched(command):
                self._watched.add(pid)
            elif not self._is_aside(pid, command):
                if any(has_loaded(pid, library) for library in _LIBRARIES):
                    self._found[pid] = self._loaded(pid, command)
                else:
                    now = time.monotonic()
                    undecided |= now - self._noticed.setdefault(pid, now) < _YOUNG_SECS
        return undecided

    def _descendants(self, living: set[int]) -> Iterable[int]:
        """All processes that come from this one and are not watched, parents before children."""
        for pid in self._parents.keys() - living:
            del self._parents[pid]
        for pid in living - self._parents.keys():
            status = status_of(pid)
            if status is not None:
                self._parents[pid] = status.parent
        children: dict[int, list[int]] = {}
        for pid, parent in self._parents.items():
            children.setdefault(parent, []).append(pid)
        waiting = children.get(self._owner, [])[:]
        for pid in waiting:  # grows while it is gone through
            yield pid
            if pid not in self._watched:
                waiting += children.get(pid, ())

    def _is_aside(self, pid: int, command: tuple[str, ...]) -> bool:
        """Whether a process does not count: it serves others, or is a part of one that counts already."""
        if pid in self._started or pid in self._data_workers:
            return pid in self._data_workers
        if is_helper(command) or is_launcher(command):
            return True
        parent = self._parents.get(pid, 0)
        if (parent in self._joined or parent in self._copies) and command == command_of(parent):
            # Forked by one that is watched: it joins when it trains, and may only load data.
            self._copies.add(pid)
            return True
        copied = command == self._commands.get(parent)
        return parent in self._found and (copied or _mentions(command, _OF_MULTIPROCESSING))

    def _loaded(self, pid: int, command: tuple[str, ...]) -> UnwatchedChild:
        if pid in self._started or _mentions(command, _OF_MULTIPROCESSING):
            return UnwatchedChild(pid, "loaded", "multiprocessing")
        return UnwatchedChild(pid, "loaded", "command", shlex.join(command))

    def _guess(self) -> bool:
        """Where the system tells nothing of processes: those that Python's own module has started may train."""
        for pid in self._started - self._data_workers - self._joined - self._found.keys():
            self._found[pid] = UnwatchedChild(pid, "maybe", "multiprocessing")
        return False


def _started_here() -> list[Any]:
    """The processes that this one has started by way of `multiprocessing`."""
    module: Any = sys.modules.get("multiprocessing.process")
    for _ in range(3 if module is not None else 0):
        try:
            return list(module._children)
        except RuntimeError:  # it changed meanwhile
            time.sleep(0)
    return []


def is_launcher(command: Sequence[str]) -> bool:
    """Whether a command line is that of a program that starts the ranks of a job.

    >>> is_launcher(["python3", "-m", "torch.distributed.run", "train.py"]), is_launcher(["python3", "torchrun.py"])
    (True, False)
    """
    names = [os.path.basename(part) for part in command[:2]]
    names += [following for part, following in pairwise(command[:4]) if part == "-m"]
    return any(name in _LAUNCHERS for name in names)


def is_helper(command: Sequence[str]) -> bool:
    """Whether a command line is that of a process of Python or of a framework that serves others."""
    return _mentions(command, _HELPERS)


def is_watched(command: Sequence[str]) -> bool:
    """Whether a command line is that of `tensortap run`, by whatever name it was called."""
    return any(
        following == "run"
        and (part == "tensortap" or part.endswith(("/tensortap", "/tensortap/__main__.py")))
        for part, following in pairwise(command)
    )


def _mentions(command: Sequence[str], words: tuple[str, ...]) -> bool:
    return any(word in part for part in command for word in words)
