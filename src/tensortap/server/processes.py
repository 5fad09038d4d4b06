"""What the processes of a job say of themselves, kept in its session directory as they would have written it there."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from tensortap.errors import DumpFormatError
from tensortap.records.task import FIRST_PROCESS, is_rank, task_name
from tensortap.server.job import Job
from tensortap.server.limits import Limits
from tensortap.store.processes import RUNNING, ProcessFacts, ProcessFile, facts_from
from tensortap.wire.debug_service import WireError

__all__ = ["Processes"]

_MOST_BYTES = 16 << 10
_MOST_PROCESS = 1 << 22


class Processes:
    """One small file for each process of each job, rewritten whenever it gives a sign of life.

    Times are those of this machine: clocks of others may differ.

    Args:
        job_named: finds a job.
        limits: how many there may be.
        say_once: tells what is wrong with a job.
    """

    def __init__(
        self, job_named: Callable[[str], Job], limits: Limits, say_once: Callable[..., None]
    ) -> None:
        self._job_named = job_named
        self._limits = limits
        self._say_once = say_once
        self._version = version("tensortap")
        self._lock = threading.Lock()
        self._files: dict[tuple[str, str, int, int], _LastWords] = {}
        self._holders: dict[tuple[str, int, int], tuple[str, str, int, int]] = {}

    def tell(self, message: bytes) -> None:
        """Take what a process says.

        Raises:
            WireError: it cannot be understood, or there are too many.
        """
        name, facts = _read(message)
        job = self._job_named(name)
        now = time.time()
        said = facts.seen
        facts = replace(facts, seen=now, since=now - max(facts.seen - facts.since, 0.0))
        key = (name, f"{facts.host} {facts.machine}", facts.pid, facts.start)
        with self._lock:
            if key not in self._files:
                if sum(each[0] == name for each in self._files) >= self._limits.processes:
                    raise WireError(f"The job {name!r} has {self._limits.processes} processes already.")
                self._files[key] = _LastWords(ProcessFile(job.store.root, facts))
            words = self._files[key]
            if words.is_overtaken(facts, said):
                return
            other = key
            if is_rank(facts.rank) and facts.world > 1:
                other = self._holders.setdefault((name, facts.rank, facts.restart), key)
            if facts.state != RUNNING:
                self._holders.pop((name, facts.rank, facts.restart), None)
            if other != key:
                self._say_once(
                    ("rank", name, facts.rank),
                    "The job %s has two processes of rank %d at once, on %s and on %s. Two jobs of one name are mixed "
                    "up: name one of them otherwise, as in --stream host:port/other.",
                    name,
                    facts.rank,
                    other[1].split()[0],
                    facts.host,
                )
                self._holders[name, facts.rank, facts.restart] = key
            if facts.version not in ("", self._version):
                self._say_once(
                    ("version", name, facts.rank),
                    "%s of the job %s is watched by tensortap %s, and this server is %s. What one of them does not "
                    "know is left out.",
                    task_name(facts.rank).capitalize(),
                    name,
                    facts.version,
                    self._version,
                )
        words.take(facts, said)


class _LastWords:
    """What a process has said last, by its own clock: messages overtake each other.

    Args:
        file: where it is written.
    """

    def __init__(self, file: ProcessFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._said = -math.inf

    def is_overtaken(self, facts: ProcessFacts, said: float) -> bool:
        """Whether this is a sign of life that comes after a later word."""
        return facts.state == RUNNING and said < self._said

    def take(self, facts: ProcessFacts, said: float) -> None:
        """Write what a process says, unless something that it has said later was quicker."""
        with self._lock:
            if not self.is_overtaken(facts, said):
                self._said = said
                self._file.write(facts)


def _read(message: bytes) -> tuple[str, ProcessFacts]:
    if len(message) > _MOST_BYTES:
        raise WireError(f"A process says {len(message)} bytes of itself; the limit is {_MOST_BYTES}.")
    try:
        told: Any = json.loads(message)
        name, facts = told["job"], facts_from(told["facts"])
    except (ValueError, KeyError, TypeError, DumpFormatError) as error:
        raise WireError(f"What a process says of itself cannot be read: {error!r}") from error
    if not isinstance(name, str):
        raise WireError("A process does not say to which job it belongs.")
    if not 0 <= facts.rank < FIRST_PROCESS + _MOST_PROCESS or (
        is_rank(facts.rank) and facts.rank >= facts.world > 1
    ):
        raise WireError(
            f"The process {facts.pid} on {facts.host} says that it is rank {facts.rank} of {facts.world}."
        )
    return name, facts
