"""What commands share: finding the run they are asked about, and printing tables."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.errors import NotThereError, UsageError
from tensortap.records.task import task_name
from tensortap.store.archives import is_archive, unpacked

if TYPE_CHECKING:
    from tensortap.reader import DebugDumpDir, SessionDir

__all__ = [
    "NOT_ALL_SEEN",
    "add_output_arguments",
    "add_run_arguments",
    "checked_regex",
    "first_bad_run",
    "open_directory",
    "open_run",
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


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """How the answer is to be printed."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--wide", action="store_true", help="print names in full; else they are cut to fit the terminal"
    )


def open_directory(path: Path) -> SessionDir | DebugDumpDir:
    """A session if there are runs in the directory, else the run that the directory itself is."""
    from tensortap.reader import DebugDumpDir, SessionDir

    path = path.expanduser()
    if not path.exists():
        raise UsageError(f"There is no directory {str(path)!r}.")
    if is_archive(path):
        path = unpacked(path)
    if not path.is_dir():
        raise UsageError(
            f"{str(path)!r} is a file; name the session directory, or an archive of it (.tar.gz, .zip)."
        )
    session = SessionDir(path)
    if session.runs:
        return session
    run = DebugDumpDir(path, validate=False)
    if not run.devices() and not run.source.core_metadata:
        raise UsageError(f"There is no run in {str(path)!r}.{_sessions_inside(path)}")
    return run


def open_directories(paths: Sequence[Path]) -> SessionDir | DebugDumpDir:
    """One directory, or those that the machines of a job have written, as one; archives will do."""
    from tensortap.reader import SessionDir
    from tensortap.store.gather import gathered

    if len(paths) == 1:
        return open_directory(paths[0])
    found = [(path, open_directory(path)) for path in paths]
    for path, each in found:
        if not isinstance(each, SessionDir):
            raise UsageError(f"{str(path)!r} is one run; name the session directories of all machines.")
    return SessionDir(gathered([each.root for _, each in found if isinstance(each, SessionDir)]))


def _sessions_inside(path: Path) -> str:
    """What to name instead of a directory of sessions: those of `tensortap run`, the jobs of a server."""
    found = [each for each in path.iterdir() if each.is_dir() and any(each.glob("run_*"))]
    found.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    if not found:
        return ""
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f" It holds the session {str(found[0])!r}{others}."


def open_run(options: argparse.Namespace, *names: str, recorded: bool = False) -> DebugDumpDir:
    """The run the options name; else the one that is meant, which is said at the end.

    That is the first bad one, as `why` finds it; the last if all are healthy; and if tensors or nodes are asked about
    that it does not have, the last one that has recorded them: the last run of a program is often an evaluation, and
    what is asked about is a training step.

    Args:
        options: as `add_run_arguments` makes them.
        names: of the tensors or nodes that are asked about.
        recorded: what was recorded of them is needed; it is not enough that the graph has them.
    """
    from tensortap.reader import DebugDumpDir

    found = open_directory(options.directory)
    if isinstance(found, DebugDumpDir):
        if options.run not in (None, 0, -1):
            raise UsageError(f"{str(options.directory)!r} is a single run; leave out --run.")
        return found
    if options.run is not None:
        return found.run(options.run, task=options.task, validate=False)
    dump, why = _meant_run(found, options.task, names, recorded)
    if len(found) > 1 and not getattr(options, "json", False):
        rank = f" of {task_name(dump.source.task)}" if len(found.tasks()) > 1 else ""
        options.notes.append(f"{run_name(dump)}{rank}, {why}; -r N shows another.")
    return dump


def _meant_run(
    session: SessionDir, task: int | None, names: Sequence[str], recorded: bool
) -> tuple[DebugDumpDir, str]:
    """The run somebody means who names none, and what it is."""
    from tensortap.analyze.names import full_name

    dump, why = first_bad_run(session, task), "the first bad one"
    if dump is None:
        dump, why = _last_run(session, task), "the last one"
    if all(_knows(dump, name, recorded) for name in names):
        return dump, why
    for name in names:
        for debug_op in ("DebugNumericSummary", "DebugIdentity"):
            rows = session.history(full_name(name), debug_op)
            rows = rows if task is None else rows[rows["task"] == task]
            if len(rows):
                last = rows[-1]
                return session.run(
                    int(last["run"]), task=int(last["task"]), validate=False
                ), f"the last with {name}"
    return dump, why


def first_bad_run(session: SessionDir, task: int | None = None) -> DebugDumpDir | None:
    """The run in which the first bad value was made; None if there is none."""
    from tensortap.analyze.session import search_session

    first = search_session(session, task=task).first_bad
    if first is None:
        return None
    return next(run.open(validate=False) for run in session.runs if run.name == first.run_name)


def _last_run(session: SessionDir, task: int | None) -> DebugDumpDir:
    if task is None:
        return session.run(-1, validate=False)
    dumps = (run.open(validate=False) for run in reversed(session.runs))
    found = next((dump for dump in dumps if dump.source.task == task), None)
    if found is None:
        raise NotThereError(f"There is no run of task {task}.")
    return found


def _knows(dump: DebugDumpDir, name: str, recorded: bool) -> bool:
    from tensortap.analyze.names import full_name

    full = full_name(name)
    if any(datum.tensor_name == full for datum in dump.dumped_tensor_data):
        return True
    try:
        return not recorded and full.rpartition(":")[0] in dump.nodes()
    except LookupError:  # a run that died before its graph was stored
        return False


def run_name(dump: DebugDumpDir) -> str:
    """A run as it is called in a sentence: by its number if it is one of a session."""
    number = re.fullmatch(r"run_\d+_(\d+)", dump.dump_root.name)
    return f"Run {number[1]}" if number else dump.dump_root.name


def checked_regex(text: str | None) -> re.Pattern[str] | None:
    """A regular expression as a user typed it."""
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r} is no regular expression: {error}.") from None


def say(notices: Sequence[str]) -> None:
    """Talk to the user, beside the table."""
    for notice in notices:
        print(f"note: {notice}", file=sys.stderr)


def print_json(value: Any) -> None:
    """One JSON document on standard output; NaN and infinities as text, which JSON has no numbers for."""
    from tensortap.report.plain import plain

    print(json.dumps(plain(value), indent=2, allow_nan=False))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[str] = ()) -> None:
    """Columns as wide as they need to be and the screen allows; those in `right` are aligned to the right."""
    from tensortap.report.page import fitted, screen_width

    cut, *texts = fitted([list(headings), *([str(cell) for cell in row] for row in rows)], screen_width())
    widths = [max(len(row[i]) for row in [cut, *texts]) for i in range(len(headings))]
    for row in [cut, *texts] if any(headings) else texts:
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
