"""Who is drawn in which lane, so that what lies in one lane follows each other or nests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from tensortap.profile.executions import Execution
from tensortap.seam.step_facts import OpFacts

__all__ = ["Group", "Lane", "lanes_by_thread", "lanes_by_time", "module_groups", "packed"]


class Interval(Protocol):
    """Anything with a start and an end."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


class OnThread(Interval, Protocol):
    """An interval in which one thread did something."""

    @property
    def thread(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """Executions in the order of their starts, by their places in the message; `name` is empty for no name."""

    name: str
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive executions of one phase or module."""

    name: str
    kind: str
    path: str
    start: int
    end: int
    depth: int


def lanes_by_time(executions: Sequence[Execution]) -> list[Lane]:
    """TensorFlow's lanes: each execution takes the first one whose last end is before its start."""
    ends, members = [0], [[]]  # type: list[int], list[list[int]]
    for place, execution in enumerate(executions):
        free = next((lane for lane, end in enumerate(ends) if end < execution.start), len(ends))
        if free == len(ends):
            ends.append(0)
            members.append([])
        ends[free] = execution.end
        members[free].append(place)
    return [Lane("", tuple(each)) for each in members]


def lanes_by_thread(executions: Sequence[OnThread], names: Mapping[int, str]) -> list[Lane]:
    """One lane per thread, calls within calls nested; more if executions of a thread overlap otherwise."""
    order = sorted(range(len(executions)), key=lambda i: (executions[i].start, -executions[i].end))
    threads: dict[int, list[list[int]]] = {}
    open_ends: dict[int, list[list[int]]] = {}
    for place in order:
        execution = executions[place]
        lanes = threads.setdefault(execution.thread, [])
        stacks = open_ends.setdefault(execution.thread, [])
        for lane, stack in zip(lanes, stacks, strict=True):
            while stack and stack[-1] <= execution.start:
                stack.pop()
            if not stack or execution.end <= stack[-1]:
                lane.append(place)
                stack.append(execution.end)
                break
        else:
            lanes.append([place])
            stacks.append([execution.end])
    return [
        Lane(names.get(thread, f"thread {thread}") + (f" ({number + 1})" if number else ""), tuple(members))
        for thread, lanes in threads.items()
        for number, members in enumerate(lanes)
    ]


def packed(intervals: Sequence[Interval]) -> list[int]:
    """A lane for each interval, the lowest in which it does not overlap another."""
    lanes = [0] * len(intervals)
    taken: list[tuple[int, int]] = []  # end and lane
    free: list[int] = []
    for place in sorted(range(len(intervals)), key=lambda i: (intervals[i].start, -intervals[i].end)):
        while taken and taken[0][0] <= intervals[place].start:
            heappush(free, heappop(taken)[1])
        lanes[place] = heappop(free) if free else len(taken)
        heappush(taken, (intervals[place].end, lanes[place]))
    return lanes


def module_groups(executions: Sequence[Execution], facts: Mapping[str, OpFacts]) -> list[Group]:
    """The phases and modules around the executions of one lane, outer ones first.

    A module that is called twice, or left for a while, is two groups: what is drawn is what ran. Executions of which
    nothing is known do not end a group.

    Args:
        executions: of one lane, by start.
        facts: by node name.
    """
    groups: list[Group] = []
    opened: list[tuple[str, int]] = []  # key and start
    last = 0  # the end of the group's last execution
    reached = 0  # the end of what came before; calls within calls do not count

    def close(depth: int) -> None:
        while len(opened) > depth:
            key, start = opened.pop()
            groups.append(_group(key, start, last, len(opened)))

    for execution in executions:
        if execution.end <= reached and execution.start < reached:
            continue  # called by the one before
        reached = execution.end
        keys = _keys(facts.get(execution.name))
        if not keys:
            continue
        shared = 0
        while shared < min(len(keys), len(opened)) and keys[shared] == opened[shared][0]:
            shared += 1
        close(shared)
        opened.extend((key, execution.start) for key in keys[shared:])
        last = execution.end
    close(0)
    return sorted(groups, key=lambda group: (group.start, -group.end, group.depth))


def _keys(facts: OpFacts | None) -> list[str]:
    """`backward`, `backward model`, `backward model/0` … for an op of the module `model/0`."""
    if facts is None or not facts.phase:
        return []
    parts = [part for part in facts.module.split("/") if part]
    paths = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return [facts.phase, *(f"{facts.phase} {path}" for path in paths if path != "optimizer")]


def _group(key: str, start: int, end: int, depth: int) -> Group:
    phase, _, path = key.partition(" ")
    if not path:
        return Group(phase, "Phase", "", start, end, depth)
    above, _, name = path.rpartition("/")
    if name.isdecimal() and above:  # "layers/3" says more than "3"
        name = f"{above.rpartition('/')[2]}/{name}"
    return Group(name, "Module", path, start, end, depth)
