"""The tools that peers.py compares, and the words it uses for them.

A *peer* is a tool in one setting, and gives one row of the table. It *watches* a training step in some
*process*, next to the same step unwatched. Peers share a process when each of them is gone between its calls;
one that replaces functions of its framework, or that can be switched on only once, has a process of its own.

To add a peer, write a function that opens it, and list it in the `PEERS` of a module here. Frameworks and
tools are imported inside the functions, so that a process loads only what it measures.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Call = Callable[[], object]
HEALTH, VALUES = "health of everything", "every value dumped"
GROUPS = (HEALTH, VALUES)


def do_nothing() -> None:
    """What a peer that needs no care does around its calls."""


@dataclass(frozen=True)
class Watching:
    """A peer at work.

    Attributes:
        call: one watched step; this is timed.
        count: how many records the last call left. The proof that the peer works: None when it leaves none
            by design, otherwise zero is a failure.
        folder: where it writes, if it does.
        prepare: done before a call, not timed.
        settle: done after a call, not timed.
        clean: deletes what was written, so that the disk does not fill up; not timed.
    """

    call: Call
    count: Callable[[], int | None]
    folder: Path | None = None
    prepare: Call = do_nothing
    settle: Call = do_nothing
    clean: Call = do_nothing


class NotAvailable(Exception):
    """This peer cannot run here, for the reason given."""


@dataclass(frozen=True)
class Peer:
    """A tool in one setting.

    Attributes:
        tool: the name to choose it by.
        setting: how it is switched on.
        group: the half of the table it belongs to.
        granularity: what it has a record of.
        package: the distribution it comes from.
        install: what to install when it is missing.
        process: peers of the same name share one.
        start: makes the step in this process, given the number of threads, and returns it with its unwatched
            call.
        open: starts watching that step; what it opens goes on the stack.
    """

    tool: str
    setting: str
    group: str
    granularity: str
    package: str
    install: str
    process: str
    start: Callable[[int, ExitStack], tuple[Any, Call]]
    open: Callable[[Any, ExitStack], Watching]


def make_folder(stack: ExitStack) -> Path:
    """A temporary folder to write to; it goes with the stack."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-bench-")))


def empty_folder(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def newest_in(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
