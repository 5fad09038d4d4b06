"""How long tensors live, and how much memory they take together.

Lifetimes are exact where the engine recorded them, else they follow from the dataflow: a tensor lives from the start of
its producer to the end of its last consumer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensortap.profile.executions import Execution, Output
from tensortap.seam.step_facts import TensorLife

__all__ = ["AllocationMaximum", "Life", "Production", "Productions", "allocator_series", "exact_lives"]


class AllocationMaximum(NamedTuple):
    """The moment at which an allocator had handed out most.

    Attributes:
        timestamp: as in the trace.
        num_bytes: the sum at that moment.
        tensors: names of those that made it.
    """

    timestamp: int | float
    num_bytes: int
    tensors: set[str]


@dataclass(slots=True)
class Life:
    """A tensor from its creation to its release; grows while its consumers are found."""

    name: str
    device: int
    allocator: str
    nbytes: int
    start: int
    end: int
    output: Output | None = None


@dataclass(frozen=True, slots=True)
class Production:
    """One execution that made a tensor: when, and in which lane (device, number)."""

    execution: Execution
    lane: tuple[int, int]
    life: Life


class Productions:
    """Who made which tensor. A node in a loop makes its tensors again and again."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[Production]] = {}
        self._sorted: dict[str, tuple[list[int], list[Production]]] = {}

    def add(self, execution: Execution, lane: tuple[int, int], output: Output) -> Life:
        """An execution has made a tensor."""
        life = Life(
            output.name,
            execution.device,
            output.allocator,
            output.nbytes,
            execution.start,
            execution.end,
            output,
        )
        self._by_name.setdefault(output.name, []).append(Production(execution, lane, life))
        return life

    def find(self, name: str, consumer: Execution) -> tuple[str, Production] | None:
        """The latest production that began before its consumer, and the name it was found by.

        Where a graph was cut, names of inputs carry a suffix that their producer does not have.
        """
        if name not in self._by_name:
            cut = name.rfind("/_")
            name = name[:cut] if cut > 0 else name
        if name not in self._by_name:
            return None
        if name not in self._sorted:
            ordered = sorted(self._by_name[name], key=lambda each: each.execution.start)
            self._sorted[name] = [each.execution.start for each in ordered], ordered
        starts, productions = self._sorted[name]
        for production in reversed(productions[: bisect_right(starts, consumer.start)]):
            if production.execution is not consumer:
                return name, production
        return None


def exact_lives(
    recorded: Iterable[TensorLife], inferred: Iterable[Life], first: int, last: int
) -> list[Life]:
    """The lives an allocator recorded, within the step; what they are is known from those inferred."""
    known = {life.name: life for life in inferred}
    lives = []
    for each in recorded:
        name = each.tensor.removesuffix(":0")
        start = min(max(each.start_nanos, first), last)
        end = last if each.end_nanos is None else min(max(each.end_nanos, start), last)
        device = known[name].device if name in known else 0
        output = known[name].output if name in known else None
        lives.append(Life(name, device, each.allocator, each.nbytes, start, end, output))
    return lives


def allocator_series(
    lives: Sequence[Life],
) -> dict[str, tuple[list[tuple[int, int]], AllocationMaximum]]:
    """For each allocator, its total after every change, and its maximum; releases come first in a moment.

    A life that begins and ends in the same moment is not counted: its release would come before it.
    """
    by_allocator: dict[str, list[Life]] = {}
    for life in lives:
        counted = by_allocator.setdefault(life.allocator, [])
        if life.start < life.end:
            counted.append(life)
    return {allocator: _series(each) for allocator, each in by_allocator.items()}


def _series(lives: Sequence[Life]) -> tuple[list[tuple[int, int]], AllocationMaximum]:
    changes = [(life.start, life.nbytes, life.name) for life in lives]
    changes += [(life.end, -life.nbytes, life.name) for life in lives]
    totals: list[tuple[int, int]] = []
    total = most = when = 0
    for time, nbytes, _ in sorted(changes):
        total += nbytes
        if total > most:
            most, when = total, time
        totals.append((time, total))
    alive = {life.name for life in lives if life.nbytes and life.start <= when < life.end}
    return totals, AllocationMaximum(when, most, alive)
