"""The events of one timeline: everything is laid out first, then events are made one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tensortap.dtypes import DTYPE_NAMES
from tensortap.profile import chrome_trace
from tensortap.profile.executions import DeviceExecutions, Execution, Output, read_step_stats
from tensortap.profile.lanes import Lane, lanes_by_thread, lanes_by_time, module_groups, packed
from tensortap.profile.lifetimes import (
    AllocationMaximum,
    Life,
    Production,
    Productions,
    allocator_series,
    exact_lives,
)
from tensortap.records import TensorSpec
from tensortap.seam.step_facts import OpFacts, StepFacts
from tensortap.store.trace_file import Event, micros

__all__ = ["Drawing"]

ALLOCATORS_PID = 0
PEAK_TENSORS = 100
"""How many tensors of a memory peak a trace names, the largest first."""

FIRST_TID = 1000
"""Where lanes are counted from, if not from 0 as in TensorFlow: Perfetto takes 0 for the process's own number, and
draws two lanes in one where both occur."""


class Drawing:
    """One trace in the making.

    Attributes:
        peaks: the moment at which each allocator had handed out most.
    """

    def __init__(
        self, stats: Any, facts: StepFacts | None, show_dataflow: bool, show_memory: bool, op_time: str
    ) -> None:
        self._facts = facts
        self._ops: Mapping[str, OpFacts] = facts.ops if facts is not None else {}
        self._show_dataflow = show_dataflow
        self._show_memory = show_memory
        self._devices = read_step_stats(stats, op_time, in_nanos=facts is not None)
        self._lanes = [self._lanes_of(device) for device in self._devices]
        self._first_tid = 0 if facts is None else FIRST_TID
        self._tids = [
            {place: tid for tid, lane in enumerate(lanes, self._first_tid) for place in lane.members}
            for lanes in self._lanes
        ]
        self._block_lanes = self._lanes_of_blocks()
        self._first, self._last = self._span()
        self._zero = 0 if facts is None else self._first
        self._productions = Productions()
        self._made = [
            (self._productions.add(execution, (number, self._tids[number][place]), output), place)
            for number, device in enumerate(self._devices)
            for place, execution in enumerate(device.executions)
            for output in execution.outputs
        ]
        self._edges = list(self._find_edges())
        self._neighbours: dict[tuple[int, int], dict[int, Execution]] = {}
        self._lives = [life for life, _ in self._made]
        self._is_exact = facts is not None and bool(self._devices and facts.lives)
        if facts is not None and self._is_exact:
            self._lives = exact_lives(facts.lives, self._lives, self._first, self._last)
        elif facts is not None:
            self._keep_what_is_viewed()
        self._series = allocator_series(self._lives)
        self.peaks = {
            allocator: peak._replace(timestamp=self._shown(int(peak.timestamp)) if peak.num_bytes else 0)
            for allocator, (_, peak) in self._series.items()
        }

    # --- layout ------------------------------------------------------------------------------------

    def _lanes_of(self, device: DeviceExecutions) -> list[Lane]:
        if self._facts is None:
            return lanes_by_time(device.executions)
        return lanes_by_thread(device.executions, device.thread_names)

    def _lanes_of_blocks(self) -> list[Lane]:
        """Blocks may begin and end inside of a module, so they have lanes of their own."""
        if self._facts is None or not self._devices:
            return []
        names = self._devices[0].thread_names
        return lanes_by_thread(
            self._facts.blocks,
            {
                each.thread: f"{names.get(each.thread, f'thread {each.thread}')}: blocks"
                for each in self._facts.blocks
            },
        )

    def _tid_of_blocks(self) -> int:
        """The lane of the first blocks: behind those of ops."""
        return self._first_tid + len(self._lanes[0])

    def _span(self) -> tuple[int, int]:
        """The first and last moment of the step."""
        executions = [execution for device in self._devices for execution in device.executions]
        first = min((each.start for each in executions), default=0)
        last = max((each.end for each in executions), default=0)
        if self._facts is not None:
            first = min(first, self._facts.start_nanos or first)
            last = max(last, self._facts.end_nanos)
        return first, last

    def _find_edges(self) -> Iterator[tuple[str, Production, Execution, int]]:
        """Every use of a tensor; its life is made to last that long. The last number is the consumer's place."""
        for device in self._devices:
            for place, execution in enumerate(device.executions):
                for name in execution.inputs:
                    found = self._productions.find(name, execution)
                    if found is not None:
                        life = found[1].life
                        life.end = max(life.end, execution.end - 1)
                        yield *found, execution, place

    def _keep_what_is_viewed(self) -> None:
        """Tensors without memory of their own are views of the first input, which lives as long as they do."""
        for life, place in sorted(self._made, key=lambda made: made[0].start, reverse=True):
            execution = self._devices[life.device].executions[place]
            if not life.nbytes and execution.inputs:
                found = self._productions.find(execution.inputs[0], execution)
                if found is not None:
                    found[1].life.end = max(found[1].life.end, life.end)

    def _shown(self, moment: int) -> int | float:
        """A moment in microseconds, as the trace counts them."""
        return moment if self._facts is None else micros(moment - self._zero)

    def _duration(self, start: int, end: int) -> int | float:
        return end - start if self._facts is None else micros(end - start)

    @staticmethod
    def _compute_pid(device: int) -> int:
        return 1 + 2 * device

    @staticmethod
    def _tensors_pid(device: int) -> int:
        return 2 + 2 * device

    # --- events ------------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """All events: names first, then tensors as they are made, ops with their dataflow, memory."""
        yield from self._names()
        if self._show_memory:
            yield from self._tensors() if self._facts is None else self._tensor_lanes()
        yield from self._compute()
        if self._show_memory:
            yield from self._memory()

    def _names(self) -> Iterator[Event]:
        yield chrome_trace.process_name(ALLOCATORS_PID, "Allocators")
        for number, device in enumerate(self._devices):
            yield chrome_trace.process_name(self._compute_pid(number), f"{device.device} Compute")
            yield chrome_trace.process_name(self._tensors_pid(number), f"{device.device} Tensors")
            for tid, lane in enumerate(self._lanes[number], self._first_tid):
                if lane.name:
                    yield chrome_trace.thread_name(self._compute_pid(number), tid, lane.name)
        if self._block_lanes:
            for tid, lane in enumerate(self._block_lanes, self._tid_of_blocks()):
                yield chrome_trace.thread_name(self._compute_pid(0), tid, lane.name)

    def _tensors(self) -> Iterator[Event]:
        """Tensors as objects, in the lane of the op that made them."""
        for identity, (life, place) in enumerate(self._made):
            pid, tid = self._tensors_pid(life.device), self._tids[life.device][place]
            computed = self._devices[life.device].executions[place].end
            assert life.output is not None
            text = str(life.output.description).replace('"', "")
            yield chrome_trace.object_created(life.name, pid, tid, life.start, identity)
            yield chrome_trace.object_snapshot(
                life.name, pid, tid, max(life.start, computed - 1), identity, {"tensor_description": text}
            )

    def _tensor_lanes(self) -> Iterator[Event]:
        """Tensors as objects and as slices, in lanes of their own: not every viewer shows objects."""
        for device in range(len(self._devices)):
            lives = [(i, life) for i, life in enumerate(self._lives) if life.device == device and life.nbytes]
            lanes = packed([life for _, life in lives])
            for (identity, life), lane in sorted(
                zip(lives, lanes, strict=True), key=lambda each: each[0][1].start
            ):
                pid, tid, start = self._tensors_pid(device), self._first_tid + lane, self._shown(life.start)
                about = _about(life)
                duration = self._duration(life.start, life.end)
                yield chrome_trace.region("Tensor", life.name, pid, tid, start, duration, about)
                yield chrome_trace.object_created(life.name, pid, tid, start, identity)
                yield chrome_trace.object_snapshot(life.name, pid, tid, start, identity, about)

    def _compute(self) -> Iterator[Event]:
        for number, lanes in enumerate(self._lanes):
            if self._facts is not None:
                for tid, lane in enumerate(lanes, self._first_tid):
                    yield from self._groups(number, tid, lane)
        if self._block_lanes:
            for tid, lane in enumerate(self._block_lanes, self._tid_of_blocks()):
                yield from self._blocks(tid, lane)
        edges = iter(self._arrows())
        arrow = next(edges, None)
        for number, device in enumerate(self._devices):
            for place, execution in enumerate(device.executions):
                yield self._op(execution, number, self._tids[number][place])
                while arrow is not None and arrow[0] is execution:
                    yield from arrow[1]
                    arrow = next(edges, None)

    def _groups(self, device: int, tid: int, lane: Lane) -> Iterator[Event]:
        """The step, its phases and modules, around the ops of one lane."""
        assert self._facts is not None
        pid = self._compute_pid(device)
        executions = [self._devices[device].executions[place] for place in lane.members]
        if device == 0 and tid == self._first_tid:
            title = "step" if self._facts.step is None else f"step {self._facts.step}"
            length = self._duration(self._first, self._last)
            yield chrome_trace.region("Step", title, pid, tid, self._shown(self._first), length, {})
        for group in module_groups(executions, self._ops):
            args = {"module": group.path} if group.path else {}
            start, length = self._shown(group.start), self._duration(group.start, group.end)
            yield chrome_trace.region(group.kind, group.name, pid, tid, start, length, args)

    def _blocks(self, tid: int, lane: Lane) -> Iterator[Event]:
        assert self._facts is not None
        for place in lane.members:
            block = self._facts.blocks[place]
            start, end = (min(max(each, self._first), self._last) for each in (block.start, block.end))
            length = self._duration(start, end)
            yield chrome_trace.region(
                "Block", block.name, self._compute_pid(0), tid, self._shown(start), length, {}
            )

    def _op(self, execution: Execution, device: int, tid: int) -> Event:
        args: dict[str, Any] = {"name": execution.name, "op": execution.op}
        args.update((f"input{i}", name) for i, name in enumerate(execution.inputs))
        if self._facts is not None:
            args.update(_added(execution, self._ops.get(execution.name)))
        return chrome_trace.region(
            "Op",
            execution.op,
            self._compute_pid(device),
            tid,
            self._shown(execution.start),
            self._duration(execution.start, execution.end),
            args,
        )

    def _arrows(self) -> Iterator[tuple[Execution, tuple[Event, Event]]]:
        if not self._show_dataflow:
            return
        identity = 0
        for name, production, consumer, place in self._edges:
            producer, lane = production.execution, (consumer.device, self._tids[consumer.device][place])
            if production.lane == lane and self._is_plain_to_see(producer, consumer, lane):
                continue
            # The producer's end may be noted later than a consumer in another thread begins.
            leaves, arrives = min(producer.end, consumer.start), consumer.start
            if self._facts is not None:
                # Where slices touch and nest, only the inside of one belongs to it alone.
                leaves = max(producer.start, min(leaves, producer.end - 1))
                arrives += consumer.end > consumer.start + 1
            yield (
                consumer,
                chrome_trace.flow(
                    name,
                    (self._shown(leaves), self._compute_pid(production.lane[0]), production.lane[1]),
                    (self._shown(arrives), self._compute_pid(lane[0]), lane[1]),
                    identity,
                ),
            )
            identity += 1

    def _is_plain_to_see(self, producer: Execution, consumer: Execution, lane: tuple[int, int]) -> bool:
        """Whether an arrow within a lane would only clutter it: always in TensorFlow, here only between neighbours."""
        if self._facts is None:
            return True
        if lane not in self._neighbours:
            self._neighbours[lane] = self._followers(lane)
        return self._neighbours[lane].get(id(producer)) is consumer

    def _followers(self, lane: tuple[int, int]) -> dict[int, Execution]:
        executions = self._devices[lane[0]].executions
        members = [executions[place] for place in self._lanes[lane[0]][lane[1] - self._first_tid].members]
        return {id(one): other for one, other in pairwise(members)}

    def _memory(self) -> Iterator[Event]:
        shown = self._lives if self._facts is None else [life for life in self._lives if life.nbytes]
        identities = {id(life): number for number, life in enumerate(self._lives)}
        for life in shown:
            pid = self._tensors_pid(life.device)
            yield chrome_trace.object_deleted(life.name, pid, self._shown(life.end), identities[id(life)])
        for allocator, (totals, _) in self._series.items():
            for time, total in totals if self._facts is None else _last_of_each_moment(totals):
                yield chrome_trace.counter(allocator, ALLOCATORS_PID, self._shown(time), total)
        if self._facts is not None:
            for allocator, peak in self.peaks.items():
                args = {"bytes": peak.num_bytes, "tensors": self._largest(allocator, peak)}
                yield chrome_trace.instant(
                    "Memory", f"peak of {allocator}", ALLOCATORS_PID, peak.timestamp, args
                )

    def _largest(self, allocator: str, peak: AllocationMaximum) -> list[list[Any]]:
        """Name and size of the tensors of a peak, the largest first."""
        moment = self._series[allocator][1].timestamp
        alive: list[list[Any]] = [
            [life.name, life.nbytes]
            for life in self._lives
            if life.allocator == allocator and life.nbytes and life.start <= moment < life.end
        ]
        return sorted(alive, key=lambda each: (-each[1], each[0]))[:PEAK_TENSORS]

    def other_facts(self, left_out: Sequence[str] = ()) -> dict[str, Any]:
        """What stands beside the events: the clock, who wrote it, and the peaks."""
        found: dict[str, Any] = {"version": 1, "zero_nanos": self._zero}
        if self._facts is not None:
            who = self._facts
            found |= {"step": who.step, "rank": who.rank, "pid": who.pid, "host": who.host}
        found["peaks"] = {
            allocator: {
                "ts": peak.timestamp,
                "bytes": peak.num_bytes,
                "exact": self._is_exact,
                "count": len(peak.tensors),
                "tensors": self._largest(allocator, peak),
            }
            for allocator, peak in self.peaks.items()
            if peak.num_bytes
        }
        if left_out:
            found["left_out"] = list(left_out)
        return found


def _added(execution: Execution, facts: OpFacts | None) -> dict[str, Any]:
    """What we tell of an op beyond TensorFlow."""
    args: dict[str, Any] = {}
    if facts is not None:
        if facts.module:
            args["module"] = facts.module
        if facts.phase:
            args["phase"] = facts.phase
        if facts.source_file:
            function = f" in {facts.source_function}" if facts.source_function else ""
            args["source"] = f"{facts.source_file}:{facts.source_line}{function}"
        if facts.caller is not None:
            args["caller"] = str(facts.caller)
        if facts.stack:
            args["stack"] = [str(frame) for frame in facts.stack]
    specs = [text for output in execution.outputs if (text := _spec(output))]
    if specs:
        args["outputs"] = ", ".join(specs)
    nbytes = sum(output.nbytes for output in execution.outputs)
    if nbytes:
        args["bytes"] = nbytes
    return args


def _about(life: Life) -> dict[str, Any]:
    spec = _spec(life.output) if life.output is not None else ""
    about = {"tensor_description": spec} if spec else {}
    return {**about, "allocator": life.allocator, "bytes": life.nbytes}


def _spec(output: Output) -> str:
    """`float32[8, 128]`, or nothing if the message does not say."""
    dtype = DTYPE_NAMES.get(output.description.dtype)
    if dtype is None:
        return ""
    return str(TensorSpec(dtype, tuple(dim.size for dim in output.description.shape.dim)))


def _last_of_each_moment(totals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return list(dict(totals).items())
