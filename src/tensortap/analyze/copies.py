"""Which rank is different: checksums of what ranks hold copies of, compared step by step.

Copies that were the same and are not any more have **diverged**, unless they come together again now and then, as
those of ranks do that average their weights from time to time. Copies that never were the same are **different**: an
alarm only if they are meant to be the same, because the program has said so (DDP, replicas of a `DTensor`) or reduces
their gradients. Buffers are told apart: most programs leave them to each rank.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensortap.records.copies import BUFFER, GRADIENT, PARAMETER, Copied, RankChecks

__all__ = ["Apart", "CopyComparison", "Straggler", "compare_copies", "odd_ranks"]

DIVERGED, DIFFERENT, PERIODIC = "diverged", "different", "periodic"

_SLOWER = 1.5
"""Times as long as the others before it meets them, and a rank is a straggler."""
_NOTICED = 0.1
"""Of a step, that the others wait for it at least."""
_OFTEN = 0.75
"""Of the checks in which it is the slower one: now and then every rank is."""
_FEWEST = 8
"""Checks from which anything is said about that."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A tensor whose copies are not the same.

    Attributes:
        copied: which.
        state: `diverged`, `different` from the first check on, or `periodic`: apart for now, and together before.
        step: the first check in which they were not the same.
        last_equal: the last one before it in which they were; -1 if there was none.
        odd_ranks: those that differ from most others; all of them if there is no majority.
        ranks: all that have a copy.
    """

    copied: Copied
    state: str
    step: int
    last_equal: int
    odd_ranks: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def is_alarm(self) -> bool:
        """Whether something is wrong, rather than meant."""
        if self.copied.kind == BUFFER:
            return False
        return self.state == DIVERGED or (self.state == DIFFERENT and self.copied.is_meant)

    @property
    def who(self) -> str:
        """The ranks that differ, in words."""
        if len(self.odd_ranks) == len(self.ranks):
            some = ", ".join(map(str, self.ranks[:8])) + (" …" if len(self.ranks) > 8 else "")
            return f"ranks {some} disagree, none of them in a majority"
        return f"rank{'s' if self.odd_ranks[1:] else ''} {', '.join(map(str, self.odd_ranks[:8]))}"

    @property
    def when(self) -> str:
        """Since when, in words."""
        if self.last_equal < 0:
            return "since the first check, after step " + str(self.step)
        if self.step - self.last_equal == 1:
            return f"since step {self.step}"
        return f"since one of steps {self.last_equal + 1} to {self.step}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        kind, name, part, is_meant = self.copied
        return {
            "kind": kind,
            "name": name,
            "part": part,
            "is_meant": is_meant,
            "state": self.state,
            "step": self.step,
            "last_equal": self.last_equal,
            "odd_ranks": list(self.odd_ranks),
            "ranks": list(self.ranks),
            "is_alarm": self.is_alarm,
        }


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others wait for.

    Attributes:
        secs: how long it works in a step before it meets the others.
        others_secs: how long they do, in the middle.
        step_secs: how long a step takes.
    """

    rank: int
    host: str
    secs: float
    others_secs: float
    step_secs: float

    @property
    def sentence(self) -> str:
        """In words."""
        return (
            f"Rank {self.rank} ({self.host}) is slow: it works {1e3 * self.secs:.3g} ms of a step before it meets the "
            f"others, which need {1e3 * self.others_secs:.3g} ms and wait; a step takes {1e3 * self.step_secs:.3g} ms."
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in ("rank", "host", "secs", "others_secs", "step_secs")}


@dataclass(slots=True)
class CopyComparison:
    """What the comparison found.

    Attributes:
        ranks: that have left checksums.
        steps: after which at least two of them did.
        compared: tensors of which two ranks have a copy.
        alone: tensors of which no other rank has one.
        apart: those whose copies are not the same at the end, alarms first, then in the order of steps.
        seeds: of the ranks, by rank.
        stragglers: slowest first.
        had_other_gradients: when the first of the alarms rose, the gradients of that parameter were not the same.
    """

    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    compared: int = 0
    alone: int = 0
    apart: list[Apart] = field(default_factory=list)
    seeds: dict[int, int] = field(default_factory=dict)
    stragglers: list[Straggler] = field(default_factory=list)
    had_other_gradients: bool = False

    @property
    def first(self) -> Apart | None:
        """The first alarm."""
        return self.apart[0] if self.apart and self.apart[0].is_alarm else None

    @property
    def cause(self) -> str:
        """What the first alarm points at, in words; empty if nothing can be said."""
        first = self.first
        if first is None:
            return ""
        if first.copied.kind == GRADIENT:
            return (
                "Its gradient is not the same on all ranks when it is applied: an all-reduce was left out (a model "
                "called past its wrapper, `no_sync`), or ranks do not have the same gradients to reduce. Where nothing "
                "reduces it, as under tensor parallelism, something may have changed a weight, such as a flipped bit."
            )
        if first.state == DIFFERENT:
            differ = len(set(self.seeds.values())) > 1
            seeds = ", ".join(f"rank {rank}: {seed}" for rank, seed in list(self.seeds.items())[:8])
            told = f" Their seeds differ ({seeds})." if differ else ""
            return f"The ranks did not begin with the same values.{told}"
        if not self.had_other_gradients:
            return (
                "Its gradients were the same on all ranks: something else than the update has changed it on some, such "
                "as a flipped bit, a write of the program, or an optimizer with other settings."
            )
        return (
            "Its gradient was not the same on all ranks when it was applied: an all-reduce was left out (a model "
            "called past its wrapper, `no_sync`), or ranks did not have the same gradients to reduce."
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "ranks": list(self.ranks),
            "steps": list(self.steps),
            "compared": self.compared,
            "alone": self.alone,
            "first": None if self.first is None else self.first.as_dict(),
            "cause": self.cause,
            "apart": [each.as_dict() for each in self.apart],
            "seeds": self.seeds,
            "stragglers": [each.as_dict() for each in self.stragglers],
        }


class _Course:
    """What has happened to one tensor so far."""

    __slots__ = ("apart", "apart_at", "last_equal", "rejoined")

    def __init__(self) -> None:
        self.last_equal = -1
        self.rejoined = 0
        self.apart_at: set[int] = set()
        self.apart: tuple[int, tuple[int, ...], tuple[int, ...], bool] | None = None


def compare_copies(ranks: Sequence[RankChecks]) -> CopyComparison:
    """Compare what ranks have left.

    >>> from tensortap.records.copies import CopyCheck
    >>> weight = Copied("parameter", "model/weight")
    >>> def rank(number, *sums):
    ...     checks = [CopyCheck(step, 0.0, 1, 0.1, 0.0, {weight: sum}) for step, sum in enumerate(sums)]
    ...     return RankChecks(number, 3, "host", 0, checks)
    >>> found = compare_copies([rank(0, 7, 8), rank(1, 7, 9), rank(2, 7, 8)])
    >>> found.first.step, found.first.odd_ranks, found.first.last_equal
    (1, (1,), 0)
    """
    by_step: dict[int, dict[int, dict[Copied, int]]] = {}
    for each in ranks:
        for check in each.checks:
            by_step.setdefault(check.step, {})[each.rank] = check.sums
    steps = sorted(step for step, held in by_step.items() if len(held) > 1)
    courses: dict[tuple[str, str, str], _Course] = {}
    known: dict[tuple[str, str, str], Copied] = {}
    alone: set[tuple[str, str, str]] = set()
    for step in steps:
        holders: dict[tuple[str, str, str], dict[int, int]] = {}
        for rank, sums in by_step[step].items():
            for copied, value in sums.items():
                key = copied[:3]
                holders.setdefault(key, {})[rank] = value
                if copied.is_meant or key not in known:
                    known[key] = copied
        for key, values in holders.items():
            if len(values) < 2:
                alone.add(key)
            else:
                _note(courses.setdefault(key, _Course()), step, values)
    found = CopyComparison(
        ranks=tuple(sorted(each.rank for each in ranks)),
        steps=tuple(steps),
        compared=len(courses),
        alone=len(alone - courses.keys()),
        seeds={each.rank: each.seed for each in ranks},
        stragglers=_stragglers(ranks),
    )
    for key, course in courses.items():
        if course.apart is not None:
            step, odd, held_by, was_equal = course.apart
            state = PERIODIC if course.rejoined else DIVERGED if was_equal else DIFFERENT
            last = course.last_equal if was_equal else -1
            gradient = courses.get((GRADIENT, *key[1:]))
            # Who reduces gradients means to keep the parameters the same.
            is_meant = known[key].is_meant or (gradient is not None and gradient.last_equal >= 0)
            found.apart.append(Apart(known[key]._replace(is_meant=is_meant), state, step, last, odd, held_by))
    kinds = {GRADIENT: 0, PARAMETER: 1, BUFFER: 2}
    found.apart.sort(key=lambda each: (not each.is_alarm, each.step, kinds.get(each.copied.kind, 3)))
    if found.first is not None:
        _, name, part, _ = found.first.copied
        gradient = courses.get((GRADIENT, name, part))
        found.had_other_gradients = gradient is not None and found.first.step in gradient.apart_at
    return found


def _note(course: _Course, step: int, values: Mapping[int, int]) -> None:
    if len(set(values.values())) == 1:
        if course.apart is not None:
            course.rejoined += 1
            course.apart = None
        course.last_equal = step
        return
    course.apart_at.add(step)
    if course.apart is None:
        course.apart = (step, odd_ranks(values), tuple(sorted(values)), course.last_equal >= 0)


def odd_ranks(values: Mapping[int, Any]) -> tuple[int, ...]:
    """The ranks that differ from most others; all of them if there is no majority.

    >>> odd_ranks({0: "a", 1: "b", 2: "a"}), odd_ranks({0: "a", 1: "b"})
    ((1,), (0, 1))
    """
    common, count = Counter(values.values()).most_common(1)[0]
    if count * 2 <= len(values):
        return tuple(values)
    return tuple(rank for rank, value in values.items() if value != common)


def _stragglers(ranks: Sequence[RankChecks]) -> list[Straggler]:
    own: dict[int, dict[int, float]] = {}
    step_secs: list[float] = []
    for each in ranks:
        settled = each.checks[3:]  # the first steps are learned
        known = {check.step: check.own_secs for check in settled if check.own_secs > 0}
        if known:
            own[each.rank] = known
            step_secs.append(statistics.median(check.step_secs for check in settled))
    steps = sorted(set.intersection(*map(set, own.values()))) if len(own) > 1 else []
    if len(steps) < _FEWEST:
        return []
    step = statistics.median(step_secs)
    hosts = {each.rank: each.host for each in ranks}
    found = []
    for rank, mine in own.items():
        others = {at: statistics.median(own[each][at] for each in own if each != rank) for at in steps}
        slower = sum(mine[at] > _SLOWER * others[at] for at in steps)
        secs, theirs = statistics.median(mine[at] for at in steps), statistics.median(others.values())
        if slower >= _OFTEN * len(steps) and secs > _SLOWER * theirs and secs - theirs > _NOTICED * step:
            found.append(Straggler(rank, hosts[rank], secs, theirs, step))
    return sorted(found, key=lambda each: -each.secs)
