"""What an engine talks to during a watched run.

    publisher = Publisher(options.debug_options, run_info)
    wanted = publisher.wants(node, slot)                # None, or what to do: a dictionary look-up
    if wanted is not None:
        publisher.publish(wanted, node, slot, view, device)
    publisher.finish(nodes, error)                      # always, also after a failed run

Making a publisher may raise, for mistakes in the watches, before the step has run. After that no fault of
ours reaches the engine: it is counted, and logged once.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.ops.debug_ops import DebugOp
from tensortap.ops.view import TensorView
from tensortap.records import Circumstances, KeyTable, Node, Record, RecordBatch, RunInfo
from tensortap.seam.options import DebugOptions
from tensortap.seam.pattern import dtype_of
from tensortap.sink.base import InteractiveSink, RunEnd, Sink, log, notices
from tensortap.sink.budget import process_meter
from tensortap.sink.destinations import OpenSink, open_sink
from tensortap.watch.plan import Wanted, WatchPlan, plan_watches

__all__ = ["Publisher", "as_record_data"]

SINK_FAILED = "sink failed"
_SENTENCES_SHOWN = 5


class Publisher:
    """Turns the watched tensors of one run into records and hands them to their sinks.

    Args:
        debug_options: the watches of the run.
        run_info: the run; a step noted in the options takes the place of its step.
        open_sink: opens the sink of a URL.
        known_nodes: what the run will execute, from an engine that knows it before.

    Attributes:
        wants: `wants(node, slot)` is None for a tensor that nobody watches, otherwise a value for `publish`.
        keys: a table for the keys of batches, the same for all runs with the same watches.
        breakpoints: watch keys at which publishing waits for the reply of a debug server, and `replacement` may
            have a value afterwards.

    Raises:
        InvalidArgumentError: a debug op that cannot be made and is not tolerated.
        ValueError: a URL that is none.
        FailedPreconditionError: a `memcbk` URL that nobody listens to.

    >>> from tensortap.seam.options import DebugTensorWatch
    >>> from tensortap.sink.memory import collect
    >>> watch = DebugTensorWatch("x", 0, ["DebugNanCount"], ["memcbk:///seen"])
    >>> node = Node("x", "Placeholder")
    >>> with collect("seen") as records:
    ...     publisher = Publisher(DebugOptions([watch]), RunInfo(0, 0, 0))
    ...     view = TensorView.of_numpy(np.array([1.0, np.nan]))
    ...     publisher.publish(publisher.wants(node, 0), node, 0, view, "/device:CPU:0")
    ...     publisher.finish([node], error=None)
    >>> [(record.watch_key, np.frombuffer(record.data, np.int64).tolist()) for record in records]
    [('x:0:DebugNanCount', [1])]
    """

    def __init__(
        self,
        debug_options: DebugOptions,
        run_info: RunInfo,
        open_sink: OpenSink = open_sink,
        known_nodes: Sequence[Node] = (),
    ) -> None:
        self._plan, urls = plan_watches(debug_options.debug_tensor_watch_opts)
        if debug_options.reset_disk_byte_usage:
            process_meter().reset()
        self._step = debug_options.global_step
        self._open_sink = open_sink
        self._urls = urls
        self._reported: tuple[Node, ...] | None = None
        # A file URL names the run; what is before it, or any other URL, stays the same for a session.
        self._session = tuple(url.rpartition("/")[0] if "/run_" in url else str(url) for url in urls)
        self._open(run_info)
        self._interactive = [_as_interactive(each) for each in self._sinks]
        foreseen = tuple(known_nodes)
        for position, interactive in enumerate(self._interactive):
            if interactive is not None:
                interactive.foresee(foreseen, self._gated(foreseen, position))
        executed = self._plan
        if self._plan.has_gates and any(self._interactive):
            gates = tuple(None if each is None else each.open_gates() for each in self._interactive)
            executed, _ = plan_watches(debug_options.debug_tensor_watch_opts, gates)
        self.wants: Callable[[Node, int], Wanted | None] = executed.wanted
        self.keys = _table_of(executed)
        self.breakpoints = frozenset[str]().union(
            *(each.breakpoints() for each in self._interactive if each is not None)
        )
        self._lock = threading.Lock()
        for text, reason in self._plan.left_out:
            notices.warn(("left out", text), "The debug op %r is left out, as tolerated: %s", text, reason)

    def _open(self, run_info: RunInfo) -> None:
        if self._step >= 0:
            run_info = replace(run_info, global_step=self._step)
        self.info = run_info
        self._sinks: list[Sink] = []
        try:
            for url in self._urls:
                self._sinks.append(self._open_sink(url, run_info))
        except BaseException:
            for sink in self._sinks:
                sink.close()
            raise
        self._muted = [0] * len(self._sinks)
        self._failed = [0] * len(self._sinks)
        self._timestamp = 0
        self._finished = False

    @property
    def may_go_on(self) -> bool:
        """Whether the run is over and another one, watched alike, may go to the same places."""
        return self._finished and not any(self._interactive)

    def begin_next(self, run_info: RunInfo) -> None:
        """Take the records of another run that is watched alike: sinks are opened for it, all else stays."""
        self._open(run_info)

    @property
    def sinks(self) -> Sequence[Sink]:
        """The sinks of the run, one per URL."""
        return tuple(self._sinks)

    @property
    def takes_summaries_only(self) -> bool:
        """Whether every watch is for the plain numeric summary, which others may make in our place."""
        return self._plan.takes_summaries_only

    def publish(
        self,
        wanted: Wanted,
        node: Node,
        slot: int,
        view: TensorView,
        device: str,
        timestamp: int | None = None,
    ) -> None:
        """Run the debug ops of a tensor and hand their records over.

        Args:
            wanted: what `wants` said.
            node: the node.
            slot: which of its outputs.
            view: its value at this moment, as an `ops.view.TensorView`.
            device: full name of the device the value lives on.
            timestamp: when the value was made; now by default.
        """
        if timestamp is None:
            timestamp = self.now()
        for op, positions in wanted:
            try:
                record = _record(node, slot, op, view, device, timestamp)
            except Exception as error:
                self.failed(op, positions, node, slot, error)
            else:
                self.hand_over(record, positions)

    def stops_at(self, wanted: Wanted, node: Node, slot: int) -> bool:
        """Whether a server waits for this tensor at a breakpoint."""
        return any(f"{node.tensor(slot)}:{op.name}" in self.breakpoints for op, _ in wanted)

    def replacement(self, tensor_name: str) -> Any:
        """The value that a server put in the place of a published tensor, given once; None if none did."""
        values = [each.replacement(tensor_name) for each in self._interactive if each is not None]
        return next((value for value in values if value is not None), None)

    def hand_over(self, record: Record | None, positions: Sequence[int]) -> None:
        """Give a record to its sinks; None counts as muted.

        `publish` does this at once. An engine that reduces tensors on their device has the records only at the
        end of the run.
        """
        if record is None:
            self.count_muted(1, positions)
            return
        for position in positions:
            self._write(self._sinks[position], record)

    def hand_over_batch(self, batch: RecordBatch, positions: Sequence[int]) -> None:
        """Give many records to their sinks, which are the same for all of them."""
        for position in positions:
            sink = self._sinks[position]
            try:
                sink.write_batch(batch)
            except Exception as error:
                self._sink_failed(sink, f"{len(batch)} records", len(batch), error)

    def count_muted(self, number: int, positions: Sequence[int]) -> None:
        """Count records that their debug op chose not to make."""
        self._count(self._muted, positions, number)

    def failed(self, op: DebugOp, positions: Sequence[int], node: Node, slot: int, error: Exception) -> None:
        """Count a debug op that failed on a tensor, and say it once."""
        self._count(self._failed, positions)
        dtype = dtype_of(node, slot)
        notices.warn(
            ("op", op.name, dtype, type(error)),
            "%s failed on %s (%s), which is counted: %r",
            op.name,
            node.tensor(slot),
            dtype,
            error,
        )

    def finish(
        self,
        nodes: Sequence[Node],
        error: str | None,
        unrecorded: int = 0,
        circumstances: Circumstances | None = None,
        reason: Callable[[str], str] | None = None,
    ) -> None:
        """Tell the sinks that the run is over, and the user about watches that matched nothing.

        Args:
            nodes: what the run executed, in order.
            error: text of the error that ended it, None if it completed.
            unrecorded: how many operations were only counted, because there were too many.
            circumstances: what else the engine knows of the run.
            reason: why a node that exists was not executed, as far as the engine knows; empty for other names.
        """
        if self._finished:
            return
        self._finished = True
        executed = tuple(nodes)  # the engine goes on using its list
        for position, sink in enumerate(self._sinks):
            end = RunEnd(
                executed,
                error,
                self._muted[position],
                self._failed[position],
                self._gated(executed, position) if self._plan.has_gates else (),
                unrecorded,
                circumstances or Circumstances(),
            )
            try:
                sink.finish(end)
            except Exception as problem:
                notices.warn(
                    ("finish", type(sink)), "Finishing a run in %s failed: %r", type(sink).__name__, problem
                )
        if error is None and executed is not self._reported:
            self._report_unmatched(executed, reason)
            self._reported = executed  # of a program that repeats itself the same object

    def _gated(self, nodes: tuple[Node, ...], position: int) -> Sequence[str]:
        if self._interactive[position] is None or not self._plan.has_gates:
            return ()
        return self._plan.gated_keys(nodes, position)

    def _report_unmatched(self, nodes: tuple[Node, ...], reason: Callable[[str], str] | None) -> None:
        sentences = self._plan.unmatched(nodes, reason)
        if not sentences or not notices.is_first((self._session, *sentences)):
            return
        more = len(sentences) - _SENTENCES_SHOWN
        shown = "\n  ".join([*sentences[:_SENTENCES_SHOWN], *([f"and {more} more"] if more > 0 else [])])
        number = "A watch matches" if len(sentences) == 1 else f"{len(sentences)} watches match"
        log.warning("%s nothing in this run:\n  %s", number, shown)

    def now(self) -> int:
        """The time in microseconds, which never goes back within a run even if the clock does."""
        with self._lock:
            self._timestamp = max(self._timestamp, time.time_ns() // 1000)
            return self._timestamp

    def _count(self, counters: list[int], positions: Sequence[int], number: int = 1) -> None:
        with self._lock:
            for position in positions:
                counters[position] += number

    def _write(self, sink: Sink, record: Record) -> None:
        try:
            sink.write(record)
        except Exception as error:
            self._sink_failed(sink, record.watch_key, 1, error)

    def _sink_failed(self, sink: Sink, what: str, records: int, error: Exception) -> None:
        sink.counts.drop(SINK_FAILED, records)
        notices.warn(
            (SINK_FAILED, type(sink), type(error)),
            "%s failed to take %s, which is counted: %r",
            type(sink).__name__,
            what,
            error,
        )


def _record(
    node: Node, slot: int, op: DebugOp, view: TensorView, device: str, timestamp: int
) -> Record | None:
    """What the op makes of the value; None if it is muted."""
    value = op.apply(view)
    if value is not None:
        dtype, data = as_record_data(value)
        return Record(node.name, slot, op.name, device, timestamp, dtype, value.shape, data)
    if getattr(op, "mute_if_healthy", False):
        return None
    if view.initialized:
        raise TypeError(f"a value of {view.dtype} cannot be recorded")
    return Record(
        node.name, slot, op.name, device, timestamp, view.dtype, view.shape, None, initialized=False
    )


_interactive_types: dict[type, bool] = {}


def _as_interactive(sink: Sink) -> InteractiveSink | None:
    """The sink if it is interactive, remembered by class: to ask a protocol takes longer than to open a run."""
    known = _interactive_types.get(type(sink))
    if known is None:
        known = _interactive_types[type(sink)] = isinstance(sink, InteractiveSink)
    return sink if known else None  # type: ignore[return-value]


# A plan lives as long as runs with its watches keep coming, and knows the same tensors as its table.
_tables: weakref.WeakKeyDictionary[WatchPlan, KeyTable] = weakref.WeakKeyDictionary()


def _table_of(plan: WatchPlan) -> KeyTable:
    known = _tables.get(plan)
    return _tables.setdefault(plan, KeyTable()) if known is None else known


# Of these a buffer can be read as bytes by anybody; looked up, because NumPy makes the name anew each time.
_plain_dtypes = {
    np.dtype(name): name
    for name in ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64",
                 "uint8", "uint16", "uint32", "uint64")
}  # fmt: skip


def as_record_data(value: npt.NDArray[Any]) -> tuple[str, Any]:
    """The dtype and the data of a record that holds this array, without copying it if it is contiguous.

    >>> as_record_data(np.array([b"a", b"bc"]))
    ('string', [b'a', b'bc'])
    >>> as_record_data(np.zeros(2, np.float32))[1].nbytes
    8
    """
    known = _plain_dtypes.get(value.dtype)
    if known is not None and value.flags.c_contiguous:
        return known, value.data
    if value.dtype.kind in "SUO":
        items = value.reshape(-1).tolist()
        return "string", [each.encode() if isinstance(each, str) else bytes(each) for each in items]
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    # As bytes, because a buffer of complex, bfloat16 or float8 elements has no format that others understand.
    return value.dtype.name, np.ascontiguousarray(value).reshape(-1).view(np.uint8)
