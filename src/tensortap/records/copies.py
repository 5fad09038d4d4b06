"""What several ranks hold copies of: the nouns of comparing ranks."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BUFFER", "GRADIENT", "PARAMETER", "Copied", "CopyCheck", "RankChecks"]

GRADIENT, PARAMETER, BUFFER = "gradient", "parameter", "buffer"


class Copied(NamedTuple):
    """A tensor of which other ranks may have a copy.

    Attributes:
        kind: gradient, parameter or buffer.
        name: its path, the same on all ranks.
        part: which part of the whole this rank has, or of which ranks it is; empty for all. Equal parts are copies.
        is_meant: whether the program has said that the copies are to be the same.
    """

    kind: str
    name: str
    part: str = ""
    is_meant: bool = False


class CopyCheck(NamedTuple):
    """Checksums of what a rank held after one step.

    Attributes:
        step: of the optimizer, from 0 on.
        at: seconds since the epoch.
        steps: how many steps there were since the last check.
        step_secs: how long one of them took.
        own_secs: how long this rank worked in one until it exchanged something with the others; 0 if unknown.
        sums: by what they are of.
    """

    step: int
    at: float
    steps: int
    step_secs: float
    own_secs: float
    sums: dict[Copied, int]


class RankChecks(NamedTuple):
    """All checks of one rank, in the order of steps.

    Attributes:
        seed: that its random numbers began with.
    """

    rank: int
    world: int
    host: str
    seed: int
    checks: list[CopyCheck]
