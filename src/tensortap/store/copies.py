"""Checksums of what ranks hold copies of: a file of lines for each process, `copies/rank_<n>-<pid>-<epoch ns>.jsonl`.

The first line says whose they are. A line with `copied` lists tensors; those after it have a checksum of each, in this
order, as eight hexadecimal digits. A line that was cut off ends a file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensortap.records.copies import Copied, CopyCheck, RankChecks
from tensortap.store.layout import copies_folder

__all__ = ["CopiesFile", "read_copies"]

_MOST_BYTES = 256 << 20
"""Of one file that are read: it comes from outside."""


class CopiesFile:
    """The file of this process, made with its first line."""

    def __init__(self, root: Path, rank: int, world: int, host: str, seed: int) -> None:
        folder = copies_folder(root)
        folder.mkdir(exist_ok=True)
        path = folder / f"rank_{int(rank)}-{os.getpid()}-{time.time_ns()}.jsonl"
        self._file = path.open("ab", buffering=0)
        self._copied: Sequence[Copied] = ()
        self._write({"rank": rank, "world": world, "host": host, "seed": seed})

    def write(self, check: CopyCheck) -> None:
        """Add a check.

        Raises:
            OSError: the disk is full, or fails.
        """
        copied = list(check.sums)
        if copied != self._copied:
            self._write({"copied": copied})
            self._copied = copied
        told = {
            "step": check.step,
            "at": round(check.at, 3),
            "steps": check.steps,
            "step_secs": round(check.step_secs, 6),
            "own_secs": round(check.own_secs, 6),
            "sums": "".join(f"{each & 0xFFFFFFFF:08x}" for each in check.sums.values()),
        }
        self._write(told)

    def close(self) -> None:
        """Harmless when called again."""
        self._file.close()

    def _write(self, told: dict[str, Any]) -> None:
        self._file.write(json.dumps(told, separators=(",", ":")).encode() + b"\n")


def read_copies(root: Path) -> tuple[list[RankChecks], list[str]]:
    """What all processes have left, and what is wrong with their files; of a rank that was started again, all of it."""
    found: dict[int, RankChecks] = {}
    notices: list[str] = []
    for path in sorted(copies_folder(root).glob("rank_*.jsonl"), key=_age):
        try:
            checks = _read(path)
        except OSError as error:
            notices.append(f"{path}: {error}.")
            continue
        except (ValueError, KeyError, TypeError) as error:
            notices.append(f"{path}: not the checksums of a rank ({error}).")
            continue
        before = found.get(checks.rank)
        if before is not None:  # what a restart does again counts
            again = {each.step for each in checks.checks}
            checks.checks[:0] = [each for each in before.checks if each.step not in again]
            checks.checks.sort(key=lambda each: each.step)
        found[checks.rank] = checks
    return [found[rank] for rank in sorted(found)], notices


def _age(path: Path) -> tuple[int, str]:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0, path.name


def _read(path: Path) -> RankChecks:
    with path.open("rb") as file:
        lines = file.read(_MOST_BYTES).split(b"\n")[
            :-1
        ]  # what comes after the last end of a line is not complete
    if not lines:
        raise ValueError("it is empty")
    head = json.loads(lines[0])
    checks: list[CopyCheck] = []
    copied: list[Copied] = []
    for line in lines[1:]:
        told = json.loads(line)
        if "copied" in told:
            copied = [Copied(str(a), str(b), str(c), bool(d)) for a, b, c, d in told["copied"]]
            continue
        text = told["sums"]
        if len(text) != 8 * len(copied):
            raise ValueError(f"{len(text) // 8} checksums of {len(copied)} tensors")
        sums = {each: int(text[8 * i : 8 * i + 8], 16) for i, each in enumerate(copied)}
        took, own = float(told["step_secs"]), float(told["own_secs"])
        checks.append(CopyCheck(int(told["step"]), float(told["at"]), int(told["steps"]), took, own, sums))
    return RankChecks(int(head["rank"]), int(head["world"]), str(head["host"]), int(head["seed"]), checks)
