"""A `StepStats` message as a Chrome trace: ops in lanes, dataflow, lifetimes of tensors, memory.

Without facts of the engine the events are those of TensorFlow's own timeline, in microseconds since the epoch. With
them, times are exact to the nanosecond and count from the start of the step, lanes are threads, ops lie inside
their modules, phase and step, and tell their source line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tensortap.profile.chrome_trace import ChromeTrace
from tensortap.profile.drawing import Drawing
from tensortap.profile.lifetimes import AllocationMaximum
from tensortap.seam.graph import Graph
from tensortap.seam.step_facts import StepFacts
from tensortap.store.trace_file import TraceTooLargeError, write_trace

__all__ = ["StepStatsAnalysis", "Timeline", "WrittenTrace"]


class StepStatsAnalysis(NamedTuple):
    """A trace, and for each allocator the moment at which it had handed out most."""

    chrome_trace: ChromeTrace
    allocator_maximums: dict[str, AllocationMaximum]


@dataclass(frozen=True, slots=True)
class WrittenTrace:
    """A trace on disk.

    Attributes:
        nbytes: of its text, before compression.
        left_out: what had to be left out to keep it small, in words.
    """

    path: Path
    nbytes: int
    left_out: tuple[str, ...] = ()


class Timeline:
    """The timeline of one step. It may be used any number of times and leaves the message as it is.

    >>> from tensortap.wire.messages import StepStats
    >>> stats = StepStats()
    >>> device = stats.dev_stats.add(device="/job:localhost/replica:0/task:0/device:CPU:0")
    >>> node = device.node_stats.add(node_name="y", timeline_label="y = MatMul(x, w)", all_start_micros=17)
    >>> trace = Timeline(stats).analyze_step_stats().chrome_trace
    >>> [(event["name"], event["args"]["name"], event["ts"]) for event in trace if event["ph"] == "X"]
    [('MatMul', 'y', 17)]
    """

    def __init__(self, step_stats: Any, graph: Any = None, *, facts: StepFacts | None = None) -> None:
        """Prepare a timeline.

        Args:
            step_stats: the `StepStats` message of a run.
            graph: the graph that was executed; its nodes tell modules and lines if there are no `facts`.
            facts: what the engine knows beyond the message.
        """
        self._stats = step_stats
        if facts is None and isinstance(graph, Graph) and len(graph):
            facts = StepFacts.of(graph.nodes)
        self._facts = facts

    def generate_chrome_trace_format(
        self, show_dataflow: bool = True, show_memory: bool = False, op_time: str = "schedule"
    ) -> str:
        """The trace as JSON, indented by four.

        Args:
            show_dataflow: arrows from producers to consumers of tensors.
            show_memory: lifetimes and sizes of tensors, totals of allocators.
            op_time: which time is an op's, on devices with kernels: `schedule`, as recorded; `gpu`, from its first
                kernel on; `all`, from its start to the end of its last kernel.
        """
        analysis = self.analyze_step_stats(show_dataflow, show_memory, op_time)
        return analysis.chrome_trace.format_to_string(pretty=True)

    def analyze_step_stats(
        self, show_dataflow: bool = True, show_memory: bool = True, op_time: str = "schedule"
    ) -> StepStatsAnalysis:
        """The trace in memory, and the peaks of allocators if memory is shown. Arguments as above."""
        drawing = Drawing(self._stats, self._facts, show_dataflow, show_memory, op_time)
        facts = drawing.other_facts() if self._facts is not None else None
        trace = ChromeTrace(list(drawing.events()), facts)
        return StepStatsAnalysis(trace, drawing.peaks if show_memory else {})

    def write(
        self,
        path: str | Path,
        *,
        show_dataflow: bool = True,
        show_memory: bool = False,
        op_time: str = "schedule",
        max_bytes: int | None = None,
    ) -> WrittenTrace:
        """Write the trace to a file, one event per line, while it is made; readers see all of it or nothing.

        Args:
            path: compressed if it ends in `.gz`.
            show_dataflow: as above.
            show_memory: as above.
            op_time: as above.
            max_bytes: of the text. What does not fit is left out as a whole: first dataflow, then memory, then
                the shortest slices. The trace says so.

        Raises:
            TraceTooLargeError: not even the longest slice fits.
        """
        path = Path(path)
        left_out: list[str] = []
        shown = {"dataflow": show_dataflow, "memory": show_memory}
        while True:
            drawing = Drawing(self._stats, self._facts, shown["dataflow"], shown["memory"], op_time)
            try:
                size = write_trace(path, drawing.events(), drawing.other_facts(left_out), max_bytes=max_bytes)
                return WrittenTrace(path, size, tuple(left_out))
            except TraceTooLargeError:
                dearest = next((kind for kind in ("dataflow", "memory") if shown[kind]), None)
                if dearest is None:
                    return _write_longest(path, drawing, left_out, max_bytes)
                shown[dearest] = False
                left_out.append(dearest)


def _write_longest(path: Path, drawing: Drawing, left_out: list[str], max_bytes: int | None) -> WrittenTrace:
    """Half of the slices, a quarter … until they fit."""
    events = list(drawing.events())
    slices = sorted((event for event in events if event["ph"] == "X"), key=lambda event: -event["dur"])
    keep = len(slices) // 2
    while keep:
        dropped = {id(event) for event in slices[keep:]}
        kept = [event for event in events if id(event) not in dropped]
        said = [*left_out, f"{len(dropped)} slices of at most {slices[keep]['dur']} µs"]
        try:
            size = write_trace(path, kept, drawing.other_facts(said), max_bytes=max_bytes)
            return WrittenTrace(path, size, tuple(said))
        except TraceTooLargeError:
            keep //= 2
    raise TraceTooLargeError(f"Nothing of {str(path)!r} fits into {max_bytes} bytes.")
