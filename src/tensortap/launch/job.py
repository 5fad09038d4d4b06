"""The job that `tensortap run` makes of a program and of all that it starts, and how a child learns that it is in one.

Whoever is started by a watched process has two variables in its environment: TENSORTAP_JOB says what to watch and where
to write, and PYTHONPATH begins with a folder of ours (`commands/site`), whose `sitecustomize` is executed by every
Python when it starts. A process that clears them, or a Python that takes no notice of them (-I, -E, -S), is not
watched; the process that was started by the user notices, and says so (`children.py`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from tensortap.frameworks import FRAMEWORKS
from tensortap.seam.place import ABOVE, signature
from tensortap.store.layout import process_folder

__all__ = ["JOB", "PYTHON", "SITE", "Job", "joined", "terminal"]

JOB = "TENSORTAP_JOB"
"""Environment variable: the job, as JSON."""

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]} {sys.prefix}"
SITE = str(Path(__file__).parents[1] / "commands" / "site")
_JOINED = ".joined"


@dataclass(frozen=True, slots=True)
class Job:
    """What a child needs to know to be watched like the process that the user started.

    Attributes:
        root: the session directory.
        name: of the job: what its processes agree on who speaks by.
        options: of `tensortap run`, as they were typed, without the program.
        program: as the user knows it.
        words: the program and its arguments, as they were typed.
        head: the process that the user started and that speaks last; 0 if there is none on this machine.
        python: version and prefix of the interpreter that can load us.
        frameworks: at whose import it begins to be watched.
        begun: whether it has been said that the program is being watched.
        stream: by which it is known at a debug server.
        terminal: where the head speaks, see `terminal`.

    >>> job = Job("/tmp/dumps", "7", ["--stop"], "train.py", ["train.py"])
    >>> Job.of({JOB: job.text}) == job
    True
    >>> Job.of({}) is None
    True
    """

    root: str
    name: str
    options: list[str]
    program: str
    words: list[str]
    head: int = 0
    python: str = PYTHON
    frameworks: str = " ".join(framework.module for framework in FRAMEWORKS)
    begun: bool = False
    stream: str = ""
    terminal: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Job | None:
        """The job that an environment tells of; None if there is none, or what it says cannot be read."""
        try:
            told = json.loads(environment.get(JOB, "") or "null")
            known = {each.name for each in fields(cls)}
            return cls(**{name: value for name, value in told.items() if name in known})
        except (ValueError, TypeError, AttributeError):
            return None

    @property
    def text(self) -> str:
        """As it is in the environment."""
        return json.dumps(asdict(self))

    def export(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Have whatever is started with this environment join the job."""
        environment[JOB] = self.text
        environment[ABOVE] = signature(environment)
        before = environment.get("PYTHONPATH", "")
        if before.split(os.pathsep)[0] != SITE:
            environment["PYTHONPATH"] = f"{SITE}{os.pathsep}{before}" if before else SITE

    def began(self) -> Job:
        """The same, once it has been said that it is being watched."""
        return replace(self, begun=True)

    def join(self) -> None:
        """Tell the others that this process is watched, or is one of those that need not be."""
        with suppress(OSError):
            folder = process_folder(Path(self.root))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{os.getpid()}{_JOINED}").touch()


def terminal() -> str:
    """Names what standard error leads to; empty if it leads nowhere."""
    try:
        status = os.fstat(2)
    except OSError:
        return ""
    return f"{status.st_dev} {status.st_ino}"


def joined(root: Path) -> set[int]:
    """The processes that have joined the job of a session directory."""
    try:
        names = os.listdir(process_folder(root))
    except OSError:
        return set()
    found = (name.removesuffix(_JOINED) for name in names if name.endswith(_JOINED))
    return {int(name) for name in found if name.isdecimal()}
