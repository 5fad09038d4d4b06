"""One directory and one voice for all ranks of a launch.

Ranks never wait for each other while they train. They agree on a directory because all of them descend from one
launcher, and on who speaks by who first leaves a file there.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tensortap.debug.root import CLAIMS, Launch
from tensortap.launch.job import joined

__all__ = ["Voice", "default_root"]

FOLDER = Path("tensortap-runs")
WAIT_SECS = 5.0
"""How long the rank that speaks at the end waits for the others to have written everything."""


def default_root() -> Path:
    """A directory named after the time: of now, or, for a rank, of the start of its launcher, which all ranks share."""
    if Launch.of(os.environ) is None:
        return _unused(FOLDER / _time_name(time.time()))
    parent = os.getppid()
    return FOLDER / f"{_time_name(_start_of(parent))}-{parent}"


def _unused(path: Path) -> Path:
    number, chosen = 1, path
    while chosen.exists():
        number += 1
        chosen = path.with_name(f"{path.name}-{number}")
    return chosen


def _time_name(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d_%H-%M-%S")


def _start_of(process: int) -> float:
    """When a process began; where that cannot be told, the day must do: its number is in the name, too."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        booted = next(
            line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
        )
        return int(booted.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, IndexError, ValueError):
        return time.time() // 86400 * 86400


@dataclass(frozen=True)
class Voice:
    """Decides which of the processes that share a directory speaks.

    Attributes:
        launch: of ranks that a launcher has started, each by `tensortap run`.
        job: name of what `tensortap run` has started; its processes share the directory, too.
        is_heard: whether the user sees what this process writes to standard error; others leave it to the head.
        is_orphan: whether there is no such process; then rank 0 speaks last.
        is_head: whether this is the process that the user has started, or a rank of such; others do not speak last.

    >>> Voice(Path("dumps"), None).takes("answer")
    True
    """

    root: Path
    launch: Launch | None
    job: str = ""
    is_head: bool = True
    is_orphan: bool = False
    is_heard: bool = True

    @classmethod
    def of_this_process(cls, root: Path) -> Voice:
        """The voice of a process that the user, or a launcher, has started."""
        launch = Launch.of(os.environ)
        return cls(root, launch, secrets.token_hex(8) if launch is None else "")

    @property
    def name(self) -> str:
        """Of what all that share a voice belong to; empty for a process that is alone."""
        return self.job if self.launch is None else f"{self.launch.digest}-{self.launch.restart}"

    @property
    def job_name(self) -> str:
        """By which the job is known elsewhere."""
        return f"{self.root.name}-{self.job[:8]}" if self.launch is None else f"launch-{self.launch.digest}"

    @property
    def is_first(self) -> bool:
        """Whether this is the only process that was started by `tensortap run`, or the first rank of those."""
        return self.is_head and (self.launch is None or self.launch.rank == 0)

    @property
    def has_company(self) -> bool:
        """Whether other processes write into this directory, or may yet."""
        return self.launch is not None or not self.is_head or bool(joined(self.root))

    def takes(self, word: str) -> bool:
        """Whether this process is the first that wants to say something."""
        if not self.is_heard:
            return False
        if not self.name:
            return True
        try:
            (self.root / CLAIMS).mkdir(exist_ok=True)
            self._file(word).touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:  # rather twice than never
            return True
        return True

    def ends(self) -> None:
        """Tell the others that this rank has written everything."""
        if self.launch is not None:
            self.takes(f"ended{self.launch.rank}")

    def waits_for_the_others(self, timeout: float = WAIT_SECS) -> None:
        """Wait until all ranks have ended; one that was killed is not waited for longer than this."""
        deadline = time.monotonic() + timeout
        while self.launch is not None and self._still_running() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _still_running(self) -> bool:
        assert self.launch is not None
        names = set(os.listdir(self.root / CLAIMS)) if (self.root / CLAIMS).is_dir() else set()
        started = {name for name in names if name.startswith(f"{self.launch.digest}-rank")}
        mine = [name for name in started if name.endswith(f"-{self.launch.restart}")]
        return any(self._file(f"ended{name.split('-')[1][4:]}").name not in names for name in mine)

    def _file(self, word: str) -> Path:
        return self.root / CLAIMS / f"{self.name}-{word}"
