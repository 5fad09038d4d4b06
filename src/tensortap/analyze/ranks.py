"""Which rank went its own way, and where first: the records of all ranks compared run by run.

Ranks that train one model see different data, so most of their activations differ in every run; parameters
and reduced gradients do not. A tensor that was the same on all ranks and then is not has **diverged**, which
is what one looks for. What differs from the first compared run on is listed apart.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tensortap.analyze.copies import odd_ranks
from tensortap.pill import PILL_OP

__all__ = ["Difference", "RankComparison", "Reading", "RunReadings", "compare_ranks"]


class Reading(NamedTuple):
    """What one debug op said about one tensor in one run of one rank.

    Attributes:
        execution: 0 for the first record of the watch key in the run, and so on.
        timestamp: microseconds since the epoch.
        value: the raw bytes of a pill or a hash; equal values have equal bytes.
    """

    tensor: str
    debug_op: str
    execution: int
    timestamp: int
    value: bytes


class RunReadings(NamedTuple):
    """The readings of one run of every rank, by rank."""

    run: int
    step: int
    ranks: Mapping[int, Iterable[Reading]]


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor that is not the same on all ranks.

    Attributes:
        run, step: the first compared run in which it differed.
        odd_ranks: the ranks that differ from most others; all of them if there is no majority.
        equal_runs: in how many compared runs before that it was the same on all ranks.
        values: what each rank had.
        timestamp: when the first rank had it.
    """

    tensor: str
    debug_op: str
    execution: int
    run: int
    step: int
    odd_ranks: tuple[int, ...]
    equal_runs: int
    values: Mapping[int, bytes]
    timestamp: int

    def as_dict(self) -> dict[str, Any]:
        """The difference as JSON has it: pills as numbers, other values as hexadecimal text."""
        facts = {name: getattr(self, name) for name in ("tensor", "debug_op", "execution", "run", "step")}
        return {
            **facts,
            "equal_runs": self.equal_runs,
            "odd_ranks": list(self.odd_ranks),
            "values": {rank: _readable(self.debug_op, value) for rank, value in self.values.items()},
            "timestamp": self.timestamp,
        }


@dataclass(slots=True)
class RankComparison:
    """What the comparison found.

    Attributes:
        ranks: all ranks that had a compared run.
        runs: how many runs were compared: those that at least two ranks had.
        equal: watch keys that were the same on all ranks in every compared run.
        diverged: those that were and then were not, first to diverge first.
        different: those that differed from the beginning, in the order of time.
        missing: watch keys of a compared run that some rank lacks, with the ranks that lack them.
    """

    ranks: tuple[int, ...] = ()
    runs: int = 0
    equal: int = 0
    diverged: list[Difference] = field(default_factory=list)
    different: list[Difference] = field(default_factory=list)
    missing: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def first(self) -> Difference | None:
        """The first tensor that diverged."""
        return self.diverged[0] if self.diverged else None

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        return {
            "ranks": list(self.ranks),
            "runs": self.runs,
            "equal": self.equal,
            "diverged": [each.as_dict() for each in self.diverged],
            "different": [each.as_dict() for each in self.different],
            "missing": {key: list(ranks) for key, ranks in self.missing.items()},
        }


_Key = tuple[str, str, int]


def compare_ranks(runs: Iterable[RunReadings]) -> RankComparison:
    """Compare the ranks of a job run by run, in the order of the runs.

    >>> def reading(value):
    ...     return [Reading("w:0", "DebugHash", 0, 17, value)]
    >>> same = RunReadings(0, 0, {0: reading(b"a"), 1: reading(b"a"), 2: reading(b"a")})
    >>> odd = RunReadings(1, 1, {0: reading(b"b"), 1: reading(b"c"), 2: reading(b"b")})
    >>> first = compare_ranks([same, odd]).first
    >>> first.tensor, first.run, first.odd_ranks, first.equal_runs
    ('w:0', 1, (1,), 1)
    """
    found = RankComparison()
    ranks: set[int] = set()
    equal_runs: Counter[_Key] = Counter()
    differing: dict[_Key, Difference] = {}
    for run in runs:
        by_rank = {rank: _by_key(readings) for rank, readings in sorted(run.ranks.items())}
        if len(by_rank) < 2:
            continue
        ranks |= set(by_rank)
        found.runs += 1
        for key in _keys_in_time(by_rank):
            seen = {rank: readings[key] for rank, readings in by_rank.items() if key in readings}
            if len(seen) < len(by_rank):
                absent = tuple(rank for rank in by_rank if rank not in seen)
                found.missing.setdefault(f"{key[0]}:{key[1]}", absent)
            if len(seen) < 2 or key in differing:
                continue
            values = {rank: reading.value for rank, reading in seen.items()}
            if len(set(values.values())) == 1:
                equal_runs[key] += 1
                continue
            differing[key] = Difference(
                *key,
                run=run.run,
                step=run.step,
                odd_ranks=odd_ranks(values),
                equal_runs=equal_runs[key],
                values=values,
                timestamp=min(reading.timestamp for reading in seen.values()),
            )
    found.ranks = tuple(sorted(ranks))
    found.equal = len(equal_runs.keys() - differing.keys())
    for difference in differing.values():  # in the order of runs, and of time within them
        (found.diverged if difference.equal_runs else found.different).append(difference)
    return found


def _by_key(readings: Iterable[Reading]) -> dict[_Key, Reading]:
    return {(each.tensor, each.debug_op, each.execution): each for each in readings}


def _keys_in_time(by_rank: Mapping[int, Mapping[_Key, Reading]]) -> list[_Key]:
    """All keys, in the order in which the lowest rank that has them saw them."""
    ordered: dict[_Key, None] = {}
    for readings in by_rank.values():
        ordered.update(dict.fromkeys(readings))
    return list(ordered)


def _readable(debug_op: str, value: bytes) -> Any:
    if debug_op == PILL_OP and len(value) % 8 == 0:
        return list(struct.unpack(f"<{len(value) // 8}d", value))
    return value[:64].hex()
