"""Several traces as one, on one clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from tensortap.store.trace_file import Event, TraceFile, micros, process_names

__all__ = ["MergedTrace", "merged"]


@dataclass(frozen=True, slots=True)
class MergedTrace:
    """Several traces as one.

    Attributes:
        events: names first.
        facts: the clock, and what is told of each part, with the microseconds by which it was moved.
        notices: what a reader should know, in words.
    """

    events: list[Event]
    facts: dict[str, Any]
    notices: list[str]


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the traces.

    Attributes:
        owner: the program that wrote it. Traces of one program share their lanes.
        shift: nanoseconds by which it is moved.
        names: of its processes.
    """

    trace: TraceFile
    owner: object
    shift: int
    names: Mapping[Any, str]

    def process_of(self, event: Event) -> tuple[object, Any, str]:
        """What makes an event's process the same in several traces."""
        pid = event.get("pid", 0)
        return self.owner, pid, self.names.get(pid, "")


def merged(traces: Sequence[TraceFile]) -> MergedTrace:
    """Put traces on one clock: zero is the first moment of any of them.

    Steps of one program follow each other in the same lanes. Other traces get processes of their own, with new numbers
    where they use the same. A trace that does not tell the wall clock of its time zero begins at zero.
    """
    clocks = [_clock(trace) for trace in traces]
    spans = [_span(trace) for trace in traces]
    zero = min(
        (clock + start for clock, (start, _) in zip(clocks, spans, strict=True) if clock is not None),
        default=0,
    )
    shifts = [
        -start if clock is None else clock - zero for clock, (start, _) in zip(clocks, spans, strict=True)
    ]
    moments = [(start + shift, end + shift) for (start, end), shift in zip(spans, shifts, strict=True)]
    parts = [
        _Part(trace, owner, shift, process_names(trace.events))
        for trace, owner, shift in zip(traces, _owners(traces, moments), shifts, strict=True)
    ]
    # In the order of time, as a counter must be.
    parts = [
        part for _, _, part in sorted(zip(moments, count(), parts, strict=False), key=lambda each: each[:2])
    ]
    facts = {
        "version": 1,
        "zero_nanos": zero,
        "merged": [each for part in parts for each in _described(part)],
    }
    return MergedTrace(_events(parts), facts, _notices(traces, clocks))


def _clock(trace: TraceFile) -> int | None:
    zero = trace.facts.get("zero_nanos")
    is_clock = isinstance(zero, int) and not isinstance(zero, bool) and abs(zero) < 1 << 63
    return zero if is_clock else None


def _span(trace: TraceFile) -> tuple[int, int]:
    """First and last moment, in nanoseconds of the trace's own clock."""
    timed = [event for event in trace.events if "ts" in event and event["ph"] != "M"]
    start = min((event["ts"] for event in timed), default=0)
    end = max((event["ts"] + event.get("dur", 0) for event in timed), default=0)
    return round(start * 1000), round(end * 1000)


def _owners(traces: Sequence[TraceFile], moments: Sequence[tuple[int, int]]) -> list[object]:
    """Who wrote each trace: host and process, where they are told; of traces that overlap, each its own."""
    owners: list[object] = list(range(len(traces)))
    reached: dict[object, int] = {}
    for place in sorted(range(len(traces)), key=lambda i: moments[i]):
        told = [str(traces[place].facts.get(key, "")) for key in ("host", "pid", "rank")]
        owner = tuple(told)
        start, end = moments[place]
        if all(told) and _clock(traces[place]) is not None and start >= reached.get(owner, start):
            owners[place] = owner
            reached[owner] = end
    return owners


def _events(parts: Sequence[_Part]) -> list[Event]:
    pids, titles = _renumbered(parts), _titles(parts)
    identities: dict[tuple[int, str], int] = {}  # of arrows and objects, which are known in the whole file
    names: dict[str, Event] = {}
    others: list[Event] = []
    for number, part in enumerate(parts):
        for event in part.trace.events:
            process = part.process_of(event)
            moved = {**event, "pid": pids[process]}
            if "id" in event:
                moved["id"] = identities.setdefault((number, str(event["id"])), len(identities))
            if event["ph"] == "M":
                if event.get("name") == "process_name":
                    moved["args"] = {**event.get("args", {}), "name": titles[process]}
                names[repr(moved)] = moved  # once for all steps of a program
                continue
            if "ts" in event:
                moved["ts"] = micros(round(event["ts"] * 1000) + part.shift)
            others.append(moved)
    return [*names.values(), *others]


def _renumbered(parts: Sequence[_Part]) -> dict[tuple[object, Any, str], Any]:
    """Numbers of processes: their own, unless another one has the same."""
    processes = list(dict.fromkeys(part.process_of(event) for part in parts for event in part.trace.events))
    wanted = Counter(pid for _, pid, _ in processes)
    kept = {pid for pid, n in wanted.items() if n == 1}
    # Viewers take the thread that has its process's number for the main one; so a new number is none of a thread.
    avoided = kept | {event.get("tid") for part in parts for event in part.trace.events}
    free = (number for number in count() if number not in avoided)
    return {process: process[1] if process[1] in kept else next(free) for process in processes}


def _titles(parts: Sequence[_Part]) -> dict[tuple[object, Any, str], str]:
    """Names of processes, with rank or file in front where several have the same."""
    owners = {part.owner: part for part in parts}
    ranks = [part.trace.facts.get("rank") for part in owners.values()]
    are_distinct = None not in ranks and len({str(rank) for rank in ranks}) == len(ranks)
    processes = {(part.owner, pid, name): part for part in parts for pid, name in part.names.items()}
    shared = Counter(name for _, _, name in processes)
    titles = {}
    for process, part in processes.items():
        who = f"rank {part.trace.facts['rank']}" if are_distinct else str(part.trace.path)
        titles[process] = f"{who}: {process[2]}" if shared[process[2]] > 1 else process[2]
    return titles


def _described(part: _Part) -> list[dict[str, Any]]:
    """What is told of a part, or of each of its own parts if it was merged itself."""
    facts = part.trace.facts
    moved = part.shift / 1000
    if part.trace.merged:
        return [
            {**each, "moved_micros": _number(each.get("moved_micros")) + moved} for each in part.trace.merged
        ]
    told = {key: facts[key] for key in ("rank", "step", "host", "pid", "peaks", "left_out") if key in facts}
    return [{"file": part.trace.path.name, **told, "moved_micros": moved}]


def _number(told: Any) -> float:
    return told if isinstance(told, (int, float)) else 0.0


def _notices(traces: Sequence[TraceFile], clocks: Sequence[int | None]) -> list[str]:
    notices = [
        f"{str(trace.path)!r} does not tell its wall clock; it is shown from time zero on."
        for trace, clock in zip(traces, clocks, strict=True)
        if clock is None
    ]
    hosts = sorted({trace.facts["host"] for trace in traces if isinstance(trace.facts.get("host"), str)})
    if len(hosts) > 1:
        notices.append(
            f"The clocks of {', '.join(hosts)} are taken to agree; check that they are synchronised."
        )
    return notices
