"""What a run is asked for besides fetches and feeds, and what it reports back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.seam.measured import StepProfile
    from tensortap.seam.pattern import TensorPattern

__all__ = ["DebugOptions", "DebugTensorWatch", "RunMetadata", "RunOptions", "Tap", "TraceLevel"]

Tap = Callable[[Node, int, Any], None]
"""`tap(node, slot, live_tensor)`: called when the value is complete and before a consumer can change it."""


class TraceLevel(IntEnum):
    """How much a run measures of itself: nothing, what its ops take on the host, what they take on every device.

    >>> max(TraceLevel.NO_TRACE, TraceLevel.FULL_TRACE).name
    'FULL_TRACE'
    """

    NO_TRACE = 0
    SOFTWARE_TRACE = 1
    HARDWARE_TRACE = 2
    FULL_TRACE = 3


@dataclass
class DebugTensorWatch:
    """One tensor to watch: which output, reduced by which debug ops, sent where.

    Attributes:
        node_name: the node, or `*` for every node an engine executes.
        output_slot: the output; -1 means every output, and goes with `*`.
        debug_ops: texts such as `DebugNumericSummary(mute_if_healthy=true)`.
        debug_urls: where the records go.
        tolerate_debug_op_creation_failures: leave out a debug op that cannot be made.
        pattern: with `*`, restricts the watch to matching tensors; with a node name, the pattern by which
            `watch_graph` found the node.

    >>> DebugTensorWatch("model/fc/addmm").debug_ops
    ['DebugIdentity']
    """

    node_name: str
    output_slot: int = 0
    debug_ops: list[str] = field(default_factory=lambda: ["DebugIdentity"])
    debug_urls: list[str] = field(default_factory=list)
    tolerate_debug_op_creation_failures: bool = False
    pattern: TensorPattern | None = None


@dataclass
class DebugOptions:
    """The watches of a run.

    Attributes:
        debug_tensor_watch_opts: the watches.
        global_step: noted with the run; -1 while nobody has set it.
        reset_disk_byte_usage: start counting the bytes of the process anew.
        keep_bad: of how many nodes of the run that make a bad value (NaN or an infinity) of good ones the inputs
            and outputs are recorded whole, the moment it happens. Goes with watches for the numeric summary. A node
            that does so run after run, such as the mask of an attention, is recorded once.

    >>> DebugOptions([DebugTensorWatch("model/fc/addmm")]).global_step
    -1
    """

    debug_tensor_watch_opts: list[DebugTensorWatch] = field(default_factory=list)
    global_step: int = -1
    reset_disk_byte_usage: bool = False
    keep_bad: int = 0


@dataclass
class RunOptions:
    """Options of one run.

    Attributes:
        trace_level: how much to measure.
        timeout_in_ms: give up with `DeadlineExceededError` between two operations once this much time
            has passed; 0 means never.
        inter_op_thread_pool: kept for callers of the original API; engines without pools ignore it.
        output_partition_graphs: put the executed graph into `RunMetadata.partition_graphs`.
        debug_options: watches.
        report_tensor_allocations_upon_oom: kept for callers of the original API.
        taps: functions that receive every tensor of the run, `tap(node, slot, live_tensor)`.
        trace_memory: a traced run also notes every allocation, which costs more.
        native: options in the form of a framework of its own, which only its engine understands.

    >>> seen = []
    >>> options = RunOptions(taps=[lambda node, slot, tensor: seen.append(node.tensor(slot))])
    >>> RunOptions(trace_level=RunOptions.FULL_TRACE).trace_level.name  # the levels, as ported code spells them
    'FULL_TRACE'
    """

    NO_TRACE: ClassVar = TraceLevel.NO_TRACE
    SOFTWARE_TRACE: ClassVar = TraceLevel.SOFTWARE_TRACE
    HARDWARE_TRACE: ClassVar = TraceLevel.HARDWARE_TRACE
    FULL_TRACE: ClassVar = TraceLevel.FULL_TRACE

    trace_level: TraceLevel = TraceLevel.NO_TRACE
    timeout_in_ms: int = 0
    inter_op_thread_pool: int = 0
    output_partition_graphs: bool = False
    debug_options: DebugOptions = field(default_factory=DebugOptions)
    report_tensor_allocations_upon_oom: bool = False
    taps: list[Tap] = field(default_factory=list)
    trace_memory: bool = False
    native: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.taps, (list, tuple)) or not all(callable(tap) for tap in self.taps):
            raise TypeError(f"taps= takes a list of functions tap(node, slot, tensor), got {self.taps!r}.")
        self.taps = list(self.taps)

    def merge_from(self, other: RunOptions | Any) -> None:
        """Take on what another party asks for, so that both get at least what they wanted.

        Args:
            other: options of ours, or of a framework's own.
        """
        if not isinstance(other, RunOptions):
            self.native.append(other)
            level = getattr(other, "trace_level", None)
            if isinstance(level, int):
                self.trace_level = max(self.trace_level, TraceLevel(level))
            return
        self.native.extend(other.native)
        self.trace_level = max(self.trace_level, other.trace_level)
        self.timeout_in_ms = max(self.timeout_in_ms, other.timeout_in_ms)
        self.inter_op_thread_pool = max(self.inter_op_thread_pool, other.inter_op_thread_pool)
        self.output_partition_graphs |= other.output_partition_graphs
        self.report_tensor_allocations_upon_oom |= other.report_tensor_allocations_upon_oom
        self.taps.extend(other.taps)
        self.trace_memory |= other.trace_memory
        mine, theirs = self.debug_options, other.debug_options
        mine.debug_tensor_watch_opts.extend(theirs.debug_tensor_watch_opts)
        mine.reset_disk_byte_usage |= theirs.reset_disk_byte_usage
        mine.keep_bad = max(mine.keep_bad, theirs.keep_bad)
        # -1 means unset: the first party that knows the step decides (the original lost it here).
        if mine.global_step < 0:
            mine.global_step = theirs.global_step


@dataclass
class RunMetadata:
    """What a run reports: filled by the engine, shared with every hook's `after_run`.

    Attributes:
        nodes: the nodes the run executed, in order; empty when it was not intercepted. Arguments that have
            changed from run to run, such as a learning rate, read `(varies)`.
        partition_graphs: the same as `GraphDef` messages, when the options ask for them.
        profile: what was measured, when the options ask for a trace.
        native: what a framework reports in a form of its own; its own hooks are given that.

    >>> RunMetadata().nodes
    []
    """

    nodes: list[Node] = field(default_factory=list)
    partition_graphs: list[Any] = field(default_factory=list)
    profile: StepProfile | None = field(default=None, repr=False)
    native: Any = field(default=None, repr=False)

    @property
    def step_stats(self) -> Any:
        """Op times as a `StepStats` message, None without a trace. Worked out by the first who asks."""
        return None if self.profile is None else self.profile.step_stats

    @step_stats.setter
    def step_stats(self, message: Any) -> None:
        from tensortap.seam.measured import StepProfile

        self.profile = None if message is None else StepProfile.of(message)
