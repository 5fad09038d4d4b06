"""Whose memory is taken and given back when, as the allocators told the profiler."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensortap.engines.torch.profiling.events import Allocation
from tensortap.engines.torch.profiling.operations import Operation
from tensortap.seam.step_facts import TensorLife

__all__ = ["BEFORE", "Usage", "allocator_of", "lives_of", "usage_of"]

BEFORE = "(from before the step)"
"""The name of memory that was there already, of which no op of the step says what it is."""


@dataclass
class Usage:
    """What one operation, and whatever followed it before the next, did with one allocator.

    Attributes:
        taken: bytes taken, altogether.
        peak: how far the sum of what it took and gave back ever rose.
        live: that sum at the end.
        in_use: what the allocator had handed out then, as far as the profiler knows.
        changes: moment and bytes of each.
    """

    taken: int = 0
    peak: int = 0
    live: int = 0
    in_use: int = 0
    changes: list[tuple[int, int]] = field(default_factory=list)

    def add(self, change: Allocation) -> None:
        """Count one more."""
        self.taken += max(change.nbytes, 0)
        self.live += change.nbytes
        self.peak = max(self.peak, self.live)
        self.in_use = change.total
        self.changes.append((change.time, change.nbytes))


def allocator_of(device: str) -> str:
    """The name of a device's allocator: `cpu`, `cuda:0`.

    >>> allocator_of("/job:localhost/replica:0/task:0/device:CUDA:1")
    'cuda:1'
    """
    _, _, kind = device.lower().rpartition("/device:")
    return "cpu" if kind.startswith("cpu") else kind


class _Operations:
    """Operations by thread and moment."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._threads: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for place in sorted(range(len(operations)), key=lambda place: operations[place].start):
            starts, places = self._threads[operations[place].thread]
            starts.append(operations[place].start)
            places.append(place)

    def at(self, thread: int, moment: int) -> int | None:
        """The operation that ran at a moment, or the last before it, or the first of all; None if there is none."""
        if thread not in self._threads:
            thread = next(iter(self._threads), -1)
            if thread < 0:
                return None
        starts, places = self._threads[thread]
        return places[max(bisect_right(starts, moment) - 1, 0)]


def usage_of(
    allocations: Sequence[Allocation], operations: Sequence[Operation]
) -> dict[tuple[int, str], Usage]:
    """What each operation did, by its place and the device. No change is left out."""
    found = _Operations(operations)
    used: dict[tuple[int, str], Usage] = defaultdict(Usage)
    for change in allocations:
        place = found.at(change.thread, change.time)
        if place is not None:
            used[place, change.device].add(change)
    return used


def lives_of(
    allocations: Sequence[Allocation],
    operations: Sequence[Operation],
    made: Mapping[int, Sequence[tuple[int, str]]],
    start: int,
) -> tuple[TensorLife, ...]:
    """When the memory of each tensor was taken and given back.

    Args:
        allocations: in order of time.
        operations: what ran.
        made: for an address, when which tensor was complete there, in order of time.
        start: of the step.
    """
    found = _Operations(operations)
    open_lives: dict[tuple[str, int], Allocation] = {}
    lives: list[TensorLife] = []

    def name(taken: Allocation, until: int | None) -> str:
        tensors = made.get(taken.address, ())
        first = bisect_left(tensors, (taken.time, ""))
        if first < len(tensors) and (until is None or tensors[first][0] <= until):
            return tensors[first][1]
        place = found.at(taken.thread, taken.time)
        return f"{BEFORE if place is None else operations[place].name}:temporary"

    for change in allocations:
        key = change.device, change.address
        if change.nbytes >= 0:
            open_lives[key] = change
            continue
        taken = open_lives.pop(key, None)
        if taken is not None:
            life = name(taken, change.time), taken.nbytes, taken.time
        else:  # it was there before the step
            tensors = made.get(change.address, ())
            known = tensors[0][1] if tensors and tensors[0][0] <= change.time else BEFORE
            life = known, -change.nbytes, start
        lives.append(TensorLife(life[0], allocator_of(change.device), life[1], life[2], change.time))
    for (device, _), taken in open_lives.items():
        lives.append(TensorLife(name(taken, None), allocator_of(device), taken.nbytes, taken.time))
    return tuple(sorted(lives, key=lambda life: life.start_nanos))
