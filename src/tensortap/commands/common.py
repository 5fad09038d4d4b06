"""What commands share: finding the run they are asked about, and printing tables."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts
    from tensortap.reader import DebugDumpDir, SessionDir
    from tensortap.records import Node

__all__ = [
    "NOT_ALL_SEEN",
    "add_run_arguments",
    "checked_regex",
    "elsewhere",
    "node_of",
    "open_directory",
    "open_run",
    "plain",
    "print_json",
    "print_table",
    "run_name",
    "say",
    "size_text",
]

NOT_ALL_SEEN = 3
"""Exit code: nothing bad was found, but a rank did not finish, or a process was not watched."""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The directory and which of its runs."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a session directory, or one run in it")
    parser.add_argument(
        "-r", "--run", type=int, metavar="N", help="number of the run; negative counts from the last"
    )
    parser.add_argument("--task", type=int, metavar="RANK", help="whose run, when several ranks share DIR")


def open_directory(path: Path) -> SessionDir | DebugDumpDir:
    """A session if there are runs in the directory, else the run that the directory itself is."""
    from tensortap.reader import DebugDumpDir, SessionDir

    path = path.expanduser()
    if not path.exists():
        raise ValueError(f"There is no directory {str(path)!r}.")
    if not path.is_dir():
        raise ValueError(f"{str(path)!r} is a file; name the session directory.")
    session = SessionDir(path)
    if session.runs:
        return session
    run = DebugDumpDir(path, validate=False)
    if not run.devices() and not run.source.core_metadata:
        raise ValueError(f"There is no run in {str(path)!r}.{_sessions_inside(path)}")
    return run


def _sessions_inside(path: Path) -> str:
    """What to name instead of a directory of sessions: those of `tensortap run`, the jobs of a server."""
    found = [each for each in path.iterdir() if each.is_dir() and any(each.glob("run_*"))]
    found.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    if not found:
        return ""
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f" It holds the session {str(found[0])!r}{others}."


def open_run(options: argparse.Namespace) -> DebugDumpDir:
    """The run the options name: the last one by default."""
    from tensortap.reader import DebugDumpDir

    found = open_directory(options.directory)
    if isinstance(found, DebugDumpDir):
        if options.run not in (None, 0, -1):
            raise ValueError(f"{str(options.directory)!r} is a single run; leave out --run.")
        return found
    return found.run(-1 if options.run is None else options.run, task=options.task, validate=False)


def run_name(dump: DebugDumpDir) -> str:
    """A run as it is called in a sentence: by its number if it is one of a session."""
    number = re.fullmatch(r"run_\d+_(\d+)", dump.dump_root.name)
    return f"Run {number[1]}" if number else dump.dump_root.name


def node_of(options: argparse.Namespace, facts: RunFacts, name: str) -> Node:
    """A node by its name.

    Raises:
        LookupError: there is none; the message says which run has it, or suggests similar names.
    """
    from tensortap.analyze.graph import node_named

    try:
        return node_named(facts, name)
    except LookupError:
        where = elsewhere(options, name)
        if not where:
            raise
        raise LookupError(f"There is no node {name!r} in run {facts.info.index}.{where}") from None


def elsewhere(options: argparse.Namespace, name: str) -> str:
    """Which run has a name that the last one does not know: a sentence, or nothing if a run was named.

    The last run of a program is often an evaluation, and what is asked about is a training step.
    """
    from tensortap.reader import SessionDir

    found = open_directory(options.directory)
    if options.run is not None or not isinstance(found, SessionDir):
        return ""
    for debug_op in ("DebugNumericSummary", "DebugIdentity"):
        rows = found.history(name if ":" in name else f"{name}:0", debug_op)
        if len(rows):
            task = f" --task {rows[-1]['task']}" if len(set(rows["task"])) > 1 else ""
            return f" The last run that recorded it is {rows[-1]['run']}: say -r {rows[-1]['run']}{task}."
    return ""


def checked_regex(text: str | None) -> re.Pattern[str] | None:
    """A regular expression as a user typed it."""
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}.") from None


def say(notices: Sequence[str]) -> None:
    """Talk to the user, beside the table."""
    for notice in notices:
        print(f"note: {notice}", file=sys.stderr)


def print_json(value: Any) -> None:
    """One JSON document on standard output; NaN and infinities as text, which JSON has no numbers for."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[str] = ()) -> None:
    """Columns as wide as they need to be; those in `right` are aligned to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max([len(heading), *(len(row[i]) for row in texts)]) for i, heading in enumerate(headings)]
    for row in [list(headings), *texts] if any(headings) else texts:
        cells = [
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(row, widths, headings, strict=True)
        ]
        print("  ".join(cells).rstrip())


def size_text(nbytes: int | None) -> str:
    """Bytes as people read them.

    >>> size_text(1536)
    '1.5 kB'
    """
    if nbytes is None:
        return "gone"
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else str(value)
