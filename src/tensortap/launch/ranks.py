"""One directory and one voice for all ranks of a launch.

Ranks never wait for each other while they train. They agree on a directory because all of them descend from one
launcher, and on who speaks by who first leaves a file there.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tensortap.debug.root import CLAIMS, Launch

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
    """Decides which of the ranks that share a directory speaks.

    >>> Voice(Path("dumps"), None).takes("answer")
    True
    """

    root: Path
    launch: Launch | None

    @classmethod
    def of_this_process(cls, root: Path) -> Voice:
        """The voice of this rank."""
        return cls(root, Launch.of(os.environ))

    @property
    def rank(self) -> int:
        """0 for a program that runs alone."""
        return 0 if self.launch is None else self.launch.rank

    def takes(self, word: str) -> bool:
        """Whether this rank is the first that wants to say something."""
        if self.launch is None:
            return True
        try:
            self._file(word).touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:  # rather twice than never
            return True
        return True

    def ends(self) -> None:
        """Tell the others that this rank has written everything."""
        if self.launch is not None:
            self.takes(f"ended{self.rank}")

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
        assert self.launch is not None
        return self.root / CLAIMS / f"{self.launch.digest}-{self.launch.restart}-{word}"
