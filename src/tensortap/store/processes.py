"""The processes that write into a session: one small file each, which says what became of them.

A file is one JSON object, filled up with blanks to its full size and rewritten in place: a later write never needs more
room on the disk, and what was written last is there when the process is killed.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from tensortap.errors import DumpFormatError
from tensortap.store.layout import process_folder, read_json

__all__ = [
    "ENDED",
    "FAILED",
    "RUNNING",
    "ProcessFacts",
    "ProcessFile",
    "UnwatchedChild",
    "facts_as_text",
    "facts_from",
    "read_processes",
]

RUNNING, ENDED, FAILED = "running", "ended", "failed"

_SIZE = 4096
_TEXT_LIMIT = 200
_CHILDREN_LISTED = 8
_ATTEMPTS = 3
"""Of a reader that meets a writer in the middle of its write."""


@dataclass(frozen=True, slots=True)
class UnwatchedChild:
    """A process that a watched one started, and that was not watched itself.

    Attributes:
        evidence: `trained` (a backward pass or an optimizer step), `model` (it called a model), `loaded` (it has loaded
            the framework; what it did with it is not known) or `maybe` (not even that is known).
        started: how: `fork`, `multiprocessing` or `command`.
        command: its command line, if that says what it is.
    """

    pid: int = 0
    evidence: str = "loaded"
    started: str = "command"
    command: str = ""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What a process says of itself.

    Attributes:
        machine: of `store.system.machine`, to know whether `pid` and `start` mean anything here.
        rank, world: its place in a distributed job, and how many ranks that has; 0 and 1 alone. A process that was
            started by another and is no rank has a number of its own, see `tensortap.records.task`.
        launch: what ranks of one launch have in common, empty if there is no launcher.
        version: of tensortap, empty before it was told.
        local_rank: its place among the ranks of this machine, -1 if unknown.
        restart: how many times its launcher had started it before.
        state: `running`, then `ended`, or `failed` with an `error`.
        began, seen: when it began to write here, and its last sign of life, in seconds since the epoch.
        since: since when it has been where it is.
        interrupted: for how many seconds it had been there when somebody pressed Ctrl-C; 0 if nobody did.
        run, step: the run that has begun last, -1 before the first.
        node: the operation that was recorded last.
        file, line, function: where in the program it is.
        call: what is being executed there, if that is not the program's own code.
        children: processes it started that were not watched, the first of them.
        unwatched: how many there are.
        budget: the ratio of time that it was to keep to, 0 if all runs were watched; `cost` is what it came to.
        watched, guarded: how many runs were watched, and how many only guarded.
        bad_step, bad: what was found bad in a run that was only guarded, and in which step; the step is -1 if there are
            none.
        beat: how many seconds lie between two signs of life, if it is not the writer of the file who says so: a server
            knows of a process what it is sent.
        seen_runs, seen_steps, seen_tensors, seen_records, dropped: what it has counted; 0 in sessions of before.
        seen_passes: steps without an optimizer, which end with a backward pass.
    """

    host: str = ""
    machine: str = ""
    pid: int = 0
    start: int = 0
    rank: int = 0
    world: int = 1
    local_rank: int = -1
    launch: str = ""
    version: str = ""
    restart: int = 0
    state: str = RUNNING
    error: str = ""
    began: float = 0.0
    seen: float = 0.0
    since: float = 0.0
    interrupted: float = 0.0
    run: int = -1
    step: int = -1
    node: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    call: str = ""
    children: tuple[UnwatchedChild, ...] = ()
    unwatched: int = 0
    budget: float = 0.0
    cost: float = 0.0
    watched: int = 0
    guarded: int = 0
    bad_step: int = -1
    bad: str = ""
    beat: float = 0.0
    seen_runs: int = 0
    seen_steps: int = 0
    seen_passes: int = 0
    seen_tensors: int = 0
    seen_records: int = 0
    dropped: int = 0


class ProcessFile:
    """The file of this process.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> with ProcessFile(root, ProcessFacts(pid=17, rank=1)) as file:
    ...     file.write(ProcessFacts(pid=17, rank=1, run=3))
    >>> [(each.rank, each.run) for each in read_processes(root)[0]]
    [(1, 3)]
    """

    def __init__(self, root: Path, facts: ProcessFacts) -> None:
        folder = process_folder(root)
        folder.mkdir(exist_ok=True)
        path = folder / f"{facts.pid}-{time.time_ns()}.json"
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self.write(facts)

    def write(self, facts: ProcessFacts) -> None:
        """Replace what the file says.

        Raises:
            OSError: the disk is full, when the file is new, or fails.
        """
        if self._file is not None:
            os.pwrite(self._file, _encoded(facts), 0)

    def close(self) -> None:
        """Close the file; it stays as it is."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def __enter__(self) -> ProcessFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def facts_as_text(facts: ProcessFacts) -> str:
    """The facts as they are written, without the blanks."""
    return _encoded(facts).decode().rstrip()


def facts_from(stored: dict[str, Any]) -> ProcessFacts:
    """The facts that such a text tells.

    Raises:
        DumpFormatError: a field is of the wrong form.
    """
    return _decoded(stored)


def read_processes(root: Path) -> tuple[list[ProcessFacts], list[str]]:
    """All processes that have written here, and what is wrong with their files; sessions of old have none."""
    found, notices = [], []
    for path in sorted(process_folder(root).glob("*.json")):
        for attempt in range(_ATTEMPTS):
            try:
                found.append(_decoded(read_json(path, _SIZE)))
            except OSError as error:
                notices.append(f"{path}: {error}.")
            except DumpFormatError as error:
                if attempt + 1 < _ATTEMPTS:
                    time.sleep(0.01)
                    continue
                notices.append(str(error))
            break
    return found, notices


def _encoded(facts: ProcessFacts) -> bytes:
    """The facts in their full size; texts are as long as there is room for."""
    limit = _TEXT_LIMIT
    while len(content := _text_of(facts, limit)) >= _SIZE:
        limit //= 2
    return content.ljust(_SIZE - 1) + b"\n"


def _text_of(facts: ProcessFacts, limit: int) -> bytes:
    def cut(value: Any) -> Any:
        return value[:limit] if isinstance(value, str) else value

    told = {name: cut(value) for name, value in asdict(facts).items()}
    told["children"] = [
        {name: cut(value) for name, value in child.items()} for child in told["children"][:_CHILDREN_LISTED]
    ]
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")


def _decoded(stored: dict[str, Any]) -> ProcessFacts:
    try:
        children = tuple(_checked(UnwatchedChild, each) for each in stored.pop("children", ()))
        facts: ProcessFacts = replace(_checked(ProcessFacts, stored), children=children)
    except (TypeError, AttributeError) as error:
        raise DumpFormatError(f"A process has left a field of the wrong form: {error}.") from error
    return facts


def _checked(kind: Any, stored: dict[str, Any]) -> Any:
    """The known fields, each of the type that it has by default; what later versions add is left out."""
    given: dict[str, Any] = {}
    for each in fields(kind):
        if each.name not in stored or each.name == "children":
            continue
        value = stored[each.name]
        wanted: Any = {"int": int, "float": (int, float), "str": str}[str(each.type)]
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise TypeError(f"{each.name} is {value!r}")
        given[each.name] = value
    return kind(**given)
