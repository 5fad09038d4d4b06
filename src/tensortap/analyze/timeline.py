"""Queries over traces of profiled steps: where time and memory went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tensortap.store.trace_file import Event, TraceFile, process_names

__all__ = [
    "Op",
    "Peak",
    "StepTrace",
    "Total",
    "memory_by",
    "memory_over_time",
    "peaks",
    "read_step",
    "time_by",
    "within_modules",
]


@dataclass(frozen=True, slots=True)
class Op:
    """One execution of a node; what the trace does not tell is empty.

    Attributes:
        start, micros: when it began and how long it took.
        own_micros: the same without the ops that it called.
        nbytes: of the tensors it made; 0 in traces that do not tell.
        phase: forward, backward or optimizer.
        source: `file:line in function`.
        caller: where that is in an installed package, the user's own line that led there.
    """

    node: str
    op_type: str
    device: str
    start: float
    micros: float
    own_micros: float
    nbytes: int
    module: str
    phase: str
    source: str
    caller: str = ""

    @property
    def line(self) -> str:
        """The user's line."""
        return self.caller or self.source


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which an allocator had handed out most; tensors with their sizes, the largest first.

    Attributes:
        count: how many tensors there were; `tensors` may name fewer.
        micros: after the start of the trace.
        is_exact: as the allocator saw it; else worked out from who uses which tensor.
    """

    allocator: str
    nbytes: int
    is_exact: bool
    count: int
    tensors: tuple[tuple[str, int], ...]
    micros: float
    path: Path
    step: int | None
    rank: int | None


@dataclass(frozen=True, slots=True)
class StepTrace:
    """A trace of one step, or of several that were merged, ready to be asked.

    Attributes:
        step, rank: None if it does not tell, or tells several.
        micros: from the beginning of the step to its end.
        busy_micros: how much of that at least one op was running.
        left_out: what the writer had to leave out, in words.
        parts: step and rank of each trace that was merged into it; its own if none was.
    """

    path: Path
    step: int | None
    rank: int | None
    ops: tuple[Op, ...]
    peaks: tuple[Peak, ...]
    micros: float
    busy_micros: float
    left_out: tuple[str, ...] = ()
    parts: tuple[tuple[int | None, int | None], ...] = ((None, None),)

    @property
    def steps(self) -> int:
        """How many steps are in it."""
        return len(self.parts)

    @property
    def is_merged(self) -> bool:
        """Whether its steps may overlap."""
        return len(self.parts) > 1


@dataclass(frozen=True, slots=True)
class Total:
    """What all ops of one kind took together, per step.

    Attributes:
        share: of the time, or memory, of all ops.
        phases: the time in each phase, where it is known.
        lines: the time of each of the user's lines, the longest first, where they are known.
    """

    key: str
    micros: float
    calls: float
    nbytes: float
    share: float
    phases: Mapping[str, float]
    lines: Mapping[str, float] = field(default_factory=dict)


# --- one trace -------------------------------------------------------------------------------------


def read_step(trace: TraceFile) -> StepTrace:
    """Ops, peaks and duration of a trace of ours or of TensorFlow."""
    names = process_names(trace.events)
    slices = [event for event in trace.events if event["ph"] == "X"]
    ops = tuple(_ops([event for event in slices if event.get("cat") == "Op"], names))
    steps = [event for event in slices if event.get("cat") == "Step"]
    timed = steps or [event for event in slices if event.get("cat") == "Op"]
    start = min((_time(event) for event in timed), default=0.0)
    end = max((_time(event) + _duration(event) for event in timed), default=0.0)
    step, rank = _step_and_rank(trace.facts)
    parts = tuple(map(_step_and_rank, trace.merged))
    if step is None and not parts:
        step = _step_in_name(trace.path)
    return StepTrace(
        trace.path,
        step,
        rank,
        ops,
        _peaks(trace, step, rank, start),
        end - start,
        _covered((op.start, op.start + op.micros) for op in ops),
        tuple(
            dict.fromkeys(
                str(each) for facts in (trace.facts, *trace.merged) for each in _listed(facts.get("left_out"))
            )
        ),
        parts or ((step, rank),),
    )


def _step_and_rank(facts: Mapping[str, Any]) -> tuple[int | None, int | None]:
    step, rank = (facts.get(key) for key in ("step", "rank"))
    return (
        step if isinstance(step, int) and not isinstance(step, bool) else None,
        rank if isinstance(rank, int) and not isinstance(rank, bool) else None,
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _step_in_name(path: Path) -> int | None:
    digits = path.name.removeprefix("timeline-").partition(".")[0]
    return int(digits) if digits.isdecimal() else None


def _time(event: Event) -> float:
    return float(event.get("ts", 0))


def _duration(event: Event) -> float:
    return max(0.0, float(event.get("dur", 0)))


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _ops(events: Sequence[Event], names: Mapping[Any, str]) -> Iterator[Op]:
    inner = _time_of_inner_ops(events)
    for place, event in enumerate(events):
        args = event.get("args", {})
        node = str(args.get("name", ""))
        # A trace without modules is one of TensorFlow, where name scopes are what comes nearest.
        module = args.get("module") or ("" if "phase" in args else node.rpartition("/")[0])
        yield Op(
            node,
            str(args.get("op") or event.get("name", "")),
            names.get(event.get("pid", 0), "").removesuffix(" Compute"),
            _time(event),
            _duration(event),
            max(0.0, _duration(event) - inner[place]),
            _whole(args.get("bytes")),
            str(module),
            str(args.get("phase", "")),
            str(args.get("source", "")),
            str(args.get("caller", "")),
        )


def _time_of_inner_ops(events: Sequence[Event]) -> list[float]:
    """How long the ops took that each op called: those that lie within it in its lane."""
    inner = [0.0] * len(events)
    lanes: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for place, event in enumerate(events):
        lanes[event.get("pid"), event.get("tid")].append(place)
    for places in lanes.values():
        around: list[tuple[float, int]] = []
        for place in sorted(places, key=lambda i: (_time(events[i]), -_duration(events[i]))):
            start, end = _time(events[place]), _time(events[place]) + _duration(events[place])
            while around and around[-1][0] <= start:
                around.pop()
            if around:
                inner[around[-1][1]] += end - start
            around.append((end, place))
    return inner


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """How long at least one of them lasts."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


_Found = tuple[str, int, bool, int, tuple[tuple[str, int], ...], float]


def _peaks(trace: TraceFile, step: int | None, rank: int | None, start: float) -> tuple[Peak, ...]:
    """Peaks of a trace. Those that were merged tell their own, each after its own start."""

    def placed(
        found: Iterable[_Found], step: int | None, rank: int | None, start: float = 0.0
    ) -> Iterator[Peak]:
        for allocator, nbytes, is_exact, count, tensors, micros in found:
            yield Peak(allocator, nbytes, is_exact, count, tensors, micros - start, trace.path, step, rank)

    told = [
        peak for part in trace.merged for peak in placed(_told_peaks(part), *_step_and_rank(part))
    ] or list(placed(_told_peaks(trace.facts), step, rank, start))
    return tuple(told or placed(_counted_peaks(trace.events), step, rank, start))


def _told_peaks(facts: Mapping[str, Any]) -> list[_Found]:
    """Peaks that a trace itself tells; none if they are not as we write them."""
    told: Any = facts.get("peaks")
    try:
        return [
            (
                str(allocator),
                int(peak["bytes"]),
                bool(peak["exact"]),
                int(peak["count"]),
                tuple((str(name), int(nbytes)) for name, nbytes in peak["tensors"]),
                float(peak["ts"]),
            )
            for allocator, peak in told.items()
            if peak["bytes"] > 0
        ]
    except (AttributeError, LookupError, TypeError, ValueError):
        return []


def _counted_peaks(events: Sequence[Event]) -> list[_Found]:
    """Peaks of a trace that shows memory but does not tell them: one of TensorFlow."""
    most: dict[str, tuple[int, float]] = {}
    for event in events:
        if event["ph"] == "C" and event.get("cat") == "Memory":
            for allocator, total in event.get("args", {}).items():
                if isinstance(total, int) and total > most.get(allocator, (0, 0.0))[0]:
                    most[allocator] = total, _time(event)
    lives: dict[tuple[Any, Any], dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event["ph"] in ("N", "O", "D"):
            lives[event.get("pid"), event.get("id")][event["ph"]] = event
    found = []
    for allocator, (nbytes, moment) in most.items():
        alive = []
        for life in lives.values():
            if len(life) == 3 and _time(life["N"]) <= moment < _time(life["D"]):
                owner, size = _described(life["O"])
                if owner == allocator and size:
                    alive.append((str(life["N"].get("name", "")), size))
        alive.sort(key=lambda each: (-each[1], each[0]))
        found.append((allocator, nbytes, False, len(alive), tuple(alive), moment))
    return found


def _described(snapshot: Event) -> tuple[str, int]:
    """Allocator and size in TensorFlow's description of a tensor, which is text."""
    described = snapshot.get("args", {}).get("snapshot")
    words = str(described.get("tensor_description", "") if isinstance(described, dict) else "").split()
    told = {key: word for key, word in pairwise(words) if key.endswith(":")}
    size = told.get("requested_bytes:", "0")
    return told.get("allocator_name:", ""), int(size) if size.isdecimal() else 0


# --- questions -------------------------------------------------------------------------------------


def time_by(traces: Sequence[StepTrace], key: Callable[[Op], str]) -> list[Total]:
    """Ops grouped by what `key` says of them, the longest first; those it says nothing of are left out."""
    return sorted(_totals(traces, key, lambda op: op.own_micros), key=lambda each: (-each.micros, each.key))


def memory_by(traces: Sequence[StepTrace], key: Callable[[Op], str]) -> list[Total]:
    """The same, those that made the largest tensors first; without those that made none."""
    found = [total for total in _totals(traces, key, lambda op: op.nbytes) if total.nbytes]
    return sorted(found, key=lambda each: (-each.nbytes, each.key))


def _totals(
    traces: Sequence[StepTrace], key: Callable[[Op], str], measure: Callable[[Op], float]
) -> Iterator[Total]:
    groups: dict[str, list[Op]] = defaultdict(list)
    everything = 0.0
    for trace in traces:
        for op in trace.ops:
            everything += measure(op)
            name = key(op)
            if name:
                groups[name].append(op)
    steps = sum(trace.steps for trace in traces) or 1
    for name, ops in groups.items():
        phases: dict[str, float] = defaultdict(float)
        lines: dict[str, float] = defaultdict(float)
        for op in ops:
            if op.phase:
                phases[op.phase] += op.own_micros / steps
            if op.line:
                lines[op.line] += op.own_micros / steps
        yield Total(
            name,
            sum(op.own_micros for op in ops) / steps,
            len(ops) / steps,
            sum(op.nbytes for op in ops) / steps,
            sum(map(measure, ops)) / everything if everything else 0.0,
            phases,
            dict(sorted(lines.items(), key=lambda each: -each[1])),
        )


def within_modules(totals: Iterable[Total]) -> dict[str, float]:
    """Time of each module together with the modules in it.

    >>> within_modules([Total("m/a", 3.0, 1, 0, 1.0, {}), Total("m", 2.0, 1, 0, 1.0, {})])
    {'m': 5.0, 'm/a': 3.0}
    """
    whole: dict[str, float] = defaultdict(float)
    for total in totals:
        parts = total.key.split("/")
        for depth in range(len(parts)):
            whole["/".join(parts[: depth + 1])] += total.micros
    return dict(sorted(whole.items()))


def peaks(traces: Sequence[StepTrace]) -> list[Peak]:
    """The highest peak of each allocator over all traces, the highest first."""
    highest: dict[str, Peak] = {}
    for trace in traces:
        for peak in trace.peaks:
            if peak.allocator not in highest or peak.nbytes > highest[peak.allocator].nbytes:
                highest[peak.allocator] = peak
    return sorted(highest.values(), key=lambda peak: -peak.nbytes)


def memory_over_time(events: Sequence[Event], points: int = 2000) -> dict[str, Any]:
    """What each allocator had handed out, in bytes over microseconds since the first of these moments.

    Of many moments those with the most memory are kept, so that no peak is lost.

    >>> memory_over_time([{"ph": "C", "cat": "Memory", "ts": 5.0, "args": {"cpu": 7}}])
    {'cpu': {'micros': [0.0], 'bytes': [7]}}
    """
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C" and event.get("cat") == "Memory":
            for allocator, total in event.get("args", {}).items():
                if isinstance(total, int):
                    found[allocator].append((_time(event), total))
    start = min((moment for moments in found.values() for moment, _ in moments), default=0.0)
    shown = {}
    for allocator, moments in found.items():
        moments.sort()
        ends = [len(moments) * place // points for place in range(points + 1)]
        parts = (
            [moments[a:b] for a, b in pairwise(ends)]
            if len(moments) > points
            else [[each] for each in moments]
        )
        kept = [max(part, key=lambda each: each[1]) for part in parts if part]
        shown[allocator] = {"micros": [each[0] - start for each in kept], "bytes": [each[1] for each in kept]}
    return shown
