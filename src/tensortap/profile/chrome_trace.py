"""Events of Chrome's trace format, each made by one function; times are microseconds.

Described in the "Trace Event Format" document of the Catapult project. Perfetto and chrome://tracing show it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensortap.store.trace_file import OUR_DATA, Event

__all__ = [
    "ChromeTrace",
    "counter",
    "flow",
    "instant",
    "object_created",
    "object_deleted",
    "object_snapshot",
    "process_name",
    "region",
    "thread_name",
]

Micros = int | float


@dataclass(frozen=True, slots=True)
class ChromeTrace:
    """A whole trace in memory."""

    events: Sequence[Event]
    facts: Mapping[str, Any] | None = field(default=None)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def format_to_string(self, pretty: bool = False) -> str:
        """The text of the trace, compact or indented by four.

        >>> ChromeTrace([{"ph": "X"}]).format_to_string()
        '{"traceEvents":[{"ph":"X"}]}'
        """
        trace: dict[str, Any] = {"traceEvents": list(self.events)}
        if self.facts is not None:
            trace |= {"displayTimeUnit": "ns", "otherData": {OUR_DATA: self.facts}}
        if pretty:
            return json.dumps(trace, indent=4)
        return json.dumps(trace, separators=(",", ":"))


def process_name(pid: int, name: str) -> Event:
    """What a group of lanes is called."""
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


def thread_name(pid: int, tid: int, name: str) -> Event:
    """What a lane is called."""
    return {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def region(
    category: str, name: str, pid: int, tid: int, start: Micros, duration: Micros, args: Mapping[str, Any]
) -> Event:
    """Something that took time. Those of one lane nest or follow each other."""
    return {**_event("X", category, name, pid, tid, start), "dur": duration, "args": args}


def object_created(name: str, pid: int, tid: int, time: Micros, identity: int) -> Event:
    """A tensor begins to exist."""
    return {**_event("N", "Tensor", name, pid, tid, time), "id": identity}


def object_snapshot(
    name: str, pid: int, tid: int, time: Micros, identity: int, snapshot: Mapping[str, Any]
) -> Event:
    """What a tensor is, once it is computed."""
    return {**_event("O", "Tensor", name, pid, tid, time), "id": identity, "args": {"snapshot": snapshot}}


def object_deleted(name: str, pid: int, time: Micros, identity: int) -> Event:
    """Nobody needs a tensor any more."""
    return {**_event("D", "Tensor", name, pid, 0, time), "id": identity}


def flow(
    name: str, start: tuple[Micros, int, int], end: tuple[Micros, int, int], identity: int
) -> tuple[Event, Event]:
    """An arrow between the slices that are open at two moments: (time, pid, tid) each."""
    return (
        {**_event("s", "DataFlow", name, start[1], start[2], start[0]), "id": identity},
        {**_event("t", "DataFlow", name, end[1], end[2], end[0]), "id": identity},
    )


def counter(name: str, pid: int, time: Micros, value: int) -> Event:
    """How much memory an allocator has handed out."""
    return {**_event("C", "Memory", name, pid, 0, time), "args": {name: value}}


def instant(category: str, name: str, pid: int, time: Micros, args: Mapping[str, Any]) -> Event:
    """A moment worth a mark, across its process."""
    return {**_event("i", category, name, pid, 0, time), "s": "p", "args": args}


def _event(phase: str, category: str, name: str, pid: int, tid: int, time: Micros) -> Event:
    return {"ph": phase, "cat": category, "name": name, "pid": pid, "tid": tid, "ts": time}
