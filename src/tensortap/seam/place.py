"""The place of this process in a job, as far as its environment tells: rank, local rank, world, attempt.

Launchers put it into the environment, from where the children of a rank have it, too. A process that was started by a
watched one knows what its parent was (`TENSORTAP_ABOVE`); the same again is no place of its own. Such a process, and
one that nobody gave a rank, is known by the number of the process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tensortap.records.task import number_of_process

__all__ = ["ABOVE", "Place", "be_a_child", "number", "place", "signature", "told_by_launchers"]

ABOVE = "TENSORTAP_ABOVE"
"""Environment variable: the signature of the process that started this one, if that was watched."""

_SIGNED = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
)

_JAX = {"RANK": "JAX_PROCESS_ID", "WORLD_SIZE": "JAX_NUM_PROCESSES", "MASTER_ADDR": "JAX_COORDINATOR_ADDRESS"}

_KEYS = tuple(key for name in ("RANK", _JAX["RANK"]) for key in (name, os.fsencode(name)))
"""As the dictionary behind `os.environ` has them on any system: it is asked in every run, and far quicker."""

_is_child = False
_above = os.environ.get(ABOVE)  # before we write there for our own children


@dataclass(frozen=True, slots=True)
class Place:
    """What an environment says.

    Attributes:
        rank: None if it says nothing, or only what it said to the parent.
        local_rank: among those of this machine, -1 if unknown.
        world: how many ranks there are, 1 if unknown.
        restart: how many times the launcher had started this rank before.
        local_world: how many ranks there are on this machine, 0 if unknown.
        refused: what it says of a rank that cannot be, such as `RANK=5 of WORLD_SIZE=2`; otherwise empty.

    >>> Place.of({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}).rank
    1
    >>> inherited = {"RANK": "1", "WORLD_SIZE": "2"}
    >>> Place.of({**inherited, ABOVE: signature(inherited)}).rank is None
    True
    """

    rank: int | None = None
    local_rank: int = -1
    world: int = 1
    restart: int = 0
    local_world: int = 0
    refused: str = ""

    @property
    def is_on_several_machines(self) -> bool:
        """Whether the launcher has started ranks on other machines, too."""
        return 0 < self.local_world < self.world

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place:
        """Read it; numbers that make no sense are not there."""
        environment = told_by_launchers(environment)
        if environment.get(ABOVE) == signature(environment):
            return cls()
        rank = _number(environment, "RANK")
        world = _number(environment, "WORLD_SIZE")
        local_rank = _number(environment, "LOCAL_RANK")
        refused = ""
        if environment.get("RANK") and (rank is None or (world is not None and rank >= max(world, 1))):
            refused = f"RANK={environment['RANK']} of WORLD_SIZE={environment.get('WORLD_SIZE', '')}"
            rank = None
        return cls(
            rank,
            -1 if local_rank is None else local_rank,
            max(world or 1, 1),
            _number(environment, "TORCHELASTIC_RESTART_COUNT") or 0,
            _number(environment, "LOCAL_WORLD_SIZE") or 0,
            refused,
        )


def signature(environment: Mapping[str, str]) -> str:
    """What launchers have said, in one text; empty if nothing.

    >>> signature({"HOME": "/"})
    ''
    """
    environment = told_by_launchers(environment)
    told = [f"{name}={environment[name]}" for name in _SIGNED if environment.get(name)]
    return " ".join(told)


def told_by_launchers(environment: Mapping[str, str]) -> Mapping[str, str]:
    """An environment in the words that most launchers use: what is said to JAX alone is said in them, too.

    >>> told_by_launchers({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"})["RANK"]
    '1'
    """
    if any(name in environment for name in ("RANK", "WORLD_SIZE")) or _JAX["RANK"] not in environment:
        return environment
    told = {name: environment[theirs] for name, theirs in _JAX.items() if theirs in environment}
    return {**environment, **told}


def place() -> Place:
    """That of this process, now: some programs are their own launcher."""
    environment = dict(os.environ)
    environment.pop(ABOVE, None)
    return Place.of(environment if _above is None else {**environment, ABOVE: _above})


def number() -> int:
    """By which this process is known, if its framework knows nothing better."""
    if any(map(getattr(os.environ, "_data", os.environ).__contains__, _KEYS)):
        told = os.environ.get("RANK") or os.environ.get(_JAX["RANK"]) or ""
        rank = _rank_told(told, os.environ.get("WORLD_SIZE"), os.environ.get("MASTER_PORT"), _above)
        if rank is not None:
            return rank
    return number_of_process(os.getpid()) if _is_child else 0


@lru_cache(maxsize=8)
def _rank_told(*told: str | None) -> int | None:
    """Of what the environment says at this moment; asked in every run, and worked out when it says something new."""
    return place().rank


def be_a_child(is_forked: bool = False) -> None:
    """This process was started by a watched one: without a rank it is known by the number of the process.

    Args:
        is_forked: it is a copy, and its environment still that of its parent.
    """
    global _is_child, _above
    _is_child = True
    if is_forked:
        _above = signature(os.environ)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else None
