"""From the records of taps to executions in the order of the program, each with the iterations it was in.

XLA executes what does not depend on each other in any order, but the records of one tap come in the order of its
executions. Which iteration, and which branch, a record belongs to follows from going through the program again: how
often a scan runs is known, and what decided about branches and `while` was tapped, too.

A loop is shown up to the iteration that first hands on a bad value: in later ones everything comes bad from the one
before, and would hide where it came from.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensortap.engines.jax.program import Block, Program, Site, Step
from tensortap.engines.jax.taps.kinds import PILL, VALUE
from tensortap.engines.jax.taps.library import Taken
from tensortap.engines.jax.taps.portable import comes_in_parts
from tensortap.errors import TensortapError
from tensortap.pill import (
    ELEMENTS,
    MAX,
    MEAN,
    MIN,
    NAN,
    NEGATIVE,
    POS_INF,
    POSITIVE,
    VARIANCE,
    ZERO,
    kinds_of,
)

__all__ = ["Execution", "Spread", "executions"]


@dataclass(frozen=True, slots=True)
class Execution:
    """One record, and where it belongs.

    Attributes:
        site: what was tapped.
        row: its health pill.
        data: the elements as bytes, if they were wanted.
        iterations: of the loops it is in, outermost first; of branches -1.
    """

    site: Site
    row: npt.NDArray[np.float64]
    data: bytes | None
    iterations: tuple[int, ...]


class _Exhausted(TensortapError):
    """Records are missing, from here on."""


@dataclass(frozen=True)
class Spread:
    """Over how many devices a program was executed.

    Attributes:
        devices: all of them.
        here: those of this process, which tell of what they do.
    """

    devices: int = 1
    here: int = 1

    def copies(self, site: Site, copies: int, kind: int) -> int:
        """How many records there are of one execution: inside of `shard_map` it is executed `copies` times."""
        if copies > 1:
            return max(copies * self.here // self.devices, 1)
        return self.here if self.devices > 1 and comes_in_parts(kind, site.spec.shape) else 1


def executions(
    program: Program, taken: Taken, taps: Mapping[int, int], spread: Spread = Spread()
) -> list[Execution]:
    """The records of one call, in the order of the program; what cannot be placed is left out.

    Args:
        program: that was executed.
        taken: the records.
        taps: what was taken, by number of the site.
        spread: over how many devices, if the taps are JAX's callbacks.
    """
    waiting: dict[int, deque[int]] = defaultdict(deque)
    for place, number in enumerate(taken.numbers.tolist()):
        waiting[number].append(place)
    found: list[Execution] = []
    with contextlib.suppress(_Exhausted):
        found.extend(_Replay(taken, waiting, taps, spread).block(program.root, ()))
    return found


def _merged(rows: npt.NDArray[np.float64], elements: int | None) -> npt.NDArray[np.float64]:
    """The health of a tensor of which each device has a part, or the whole, if it has so many elements."""
    if len(rows) == 1:
        return rows.reshape(-1)
    merged: npt.NDArray[np.float64] = rows[0].copy()
    counts = [ELEMENTS, *range(NAN, POS_INF + 1)]
    merged[counts] = rows[:, counts].sum(0)
    if elements and merged[ELEMENTS] > elements:
        merged[counts] = np.ceil(merged[counts] * (elements / merged[ELEMENTS]))
    merged[MIN], merged[MAX] = rows[:, MIN].min(), rows[:, MAX].max()
    finite = rows[:, NEGATIVE] + rows[:, ZERO] + rows[:, POSITIVE]
    if finite.sum() > 0:
        means = np.where(finite > 0, rows[:, MEAN], 0)
        spreads = np.where(finite > 0, rows[:, VARIANCE], 0)
        merged[MEAN] = (finite * means).sum() / finite.sum()
        merged[VARIANCE] = (finite * (spreads + (means - merged[MEAN]) ** 2)).sum() / finite.sum()
    return merged


class _Replay:
    def __init__(
        self, taken: Taken, waiting: dict[int, deque[int]], taps: Mapping[int, int], spread: Spread
    ) -> None:
        self._taken, self._waiting, self._wanted, self._spread = taken, waiting, taps, spread
        self._busy: dict[int, bool] = {}
        self._marks: dict[int, deque[int]] = {}

    def block(self, block: Block, iterations: tuple[int, ...]) -> Iterator[Execution]:
        if not self._is_busy(block):
            return
        for site in block.entry:
            yield from self._records(site, iterations, block.copies)
        for step in block.steps:
            if step.inner:
                yield from self._inside(step, iterations)
            for site in step.outs:
                yield from self._records(site, iterations, step.copies)

    def _inside(self, step: Step, iterations: tuple[int, ...]) -> Iterator[Execution]:
        if not any(self._is_busy(block) for blocks in step.inner.values() for block in blocks):
            return
        kind = step.loop.kind if step.loop is not None else ""
        if kind == "scan":
            assert step.loop is not None
            length = step.loop.length
            is_over = False
            for n in range(length):
                index = length - 1 - n if step.loop.reverse else n
                made = list(self.block(step.inner["jaxpr"][0], (*iterations, index)))
                if not is_over:
                    yield from made
                    is_over = self._hands_on_bad(step, made)
        elif kind == "while":
            is_over = False
            times = self._iterations_of(step, is_repeated=any(each >= 0 for each in iterations))
            for n in range(times + 1):
                made = list(self.block(step.inner["cond_jaxpr"][0], (*iterations, n)))
                if n < times:
                    made += self.block(step.inner["body_jaxpr"][0], (*iterations, n))
                if not is_over:
                    yield from made
                    is_over = self._hands_on_bad(step, made)
        elif kind == "cond":
            branches = step.inner["branches"]
            for choice in self._decisions(step):
                yield from self.block(branches[min(max(choice, 0), len(branches) - 1)], (*iterations, -1))
        else:
            for blocks in step.inner.values():
                for inner in blocks:
                    yield from self.block(inner, iterations)

    def _hands_on_bad(self, step: Step, made: list[Execution]) -> bool:
        """Whether an iteration hands on something bad: what follows from it, in later ones, tells nothing new."""
        return any(each.site.number in step.leaving and kinds_of(each.row) for each in made)

    def _iterations_of(self, step: Step, is_repeated: bool) -> int:
        """How often a `while` ran this time: its marks in the body from before the one behind it."""
        if step.marks is None:
            raise _Exhausted
        inside, behind = step.marks
        passed = self._waiting.get(behind.number)
        if not passed:
            raise _Exhausted
        # The one behind is read again when its own turn comes; those in the body are not wanted by all.
        after = self._spread.copies(behind, step.copies, self._wanted.get(behind.number, PILL))
        during = self._spread.copies(inside, step.copies, self._wanted.get(inside.number, PILL))
        end = passed[min(after, len(passed)) - 1]
        queue = self._marks.setdefault(inside.number, deque(self._waiting.get(inside.number, ())))
        times = 0
        while queue and (not is_repeated or queue[0] < end):
            queue.popleft()
            times += 1
        if behind.number not in self._wanted:
            for _ in range(min(after, len(passed))):
                passed.popleft()
        return times // during

    def _decisions(self, step: Step) -> list[int]:
        """Which branches were executed: inside of `shard_map` one device may take another than the next."""
        assert step.control is not None
        found: dict[int, None] = {}
        for _ in range(self._spread.copies(step.control, step.copies, VALUE)):
            place = self._next(step.control.number)
            if place is None:
                raise _Exhausted
            found[int(np.frombuffer(self._taken.values[place] or b"\0", step.control.spec.dtype)[0])] = None
        return list(found)

    def _records(self, site: Site | None, iterations: tuple[int, ...], copies: int) -> Iterator[Execution]:
        if site is None or site.number not in self._wanted:
            return
        records = self._spread.copies(site, copies, self._wanted[site.number])
        places = [place for _ in range(records) if (place := self._next(site.number)) is not None]
        if places:
            rows = self._taken.rows[places]
            shown = next((place for place, row in zip(places, rows, strict=True) if kinds_of(row)), places[0])
            whole = math.prod(d or 0 for d in site.spec.shape) if copies == 1 else None
            yield Execution(site, _merged(rows, whole), self._taken.values[shown], iterations)

    def _next(self, number: int) -> int | None:
        queue = self._waiting.get(number)
        return queue.popleft() if queue else None

    def _is_busy(self, block: Block) -> bool:
        known = self._busy.get(id(block))
        if known is None:
            known = any(site.number in self._wanted for site in block.sites())
            self._busy[id(block)] = known
        return known
