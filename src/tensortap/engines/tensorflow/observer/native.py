"""The native observer: an op of ours behind every chosen tensor, see observer.cpp."""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tensortap.dtypes import numpy_dtype
from tensortap.engines.tensorflow.observer import function_calls
from tensortap.engines.tensorflow.observer.dtypes import STRING, lanes_for, name_of, unreadable
from tensortap.engines.tensorflow.observer.interface import (
    EXECUTION,
    STOP,
    Apart,
    Armed,
    Block,
    Choose,
    ExecutedGraph,
    ExecutedNode,
    ExecutedTensor,
    Lane,
    Observer,
    OnStop,
    Seen,
    Watch,
)
from tensortap.engines.tensorflow.observer.library import (
    DESCRIBE,
    ON_FULL,
    ON_STOP,
    Description,
    NativeLane,
    Taken,
    library,
)
from tensortap.records import RECORD_ROW

__all__ = ["NativeObserver"]

log = logging.getLogger("tensortap.engine")

_APART = 4  # the flag of records.h
_WATCH_PREFIX = "tensortap:"  # of doors.h


class NativeObserver(Observer):
    """Graphs are watched by ops of ours.

    Raises:
        NativeBuildError: they cannot be built or loaded here.
    """

    name = "native"
    sees_functions = True
    needs_metadata = False
    stops = True

    def __init__(self) -> None:
        self._library = library()

    def watch(
        self,
        lanes: Sequence[Lane],
        choose: Choose,
        *,
        keep_bad: int = 0,
        value_limit: int = 1 << 30,
        on_full: Callable[[], None] | None = None,
        on_stop: OnStop | None = None,
        graph: Any = None,
    ) -> Watch:
        """See `Observer.watch`."""
        return NativeWatch(self._library, lanes, choose, keep_bad, value_limit, on_full, on_stop)


class NativeWatch(Watch):
    """A watch, and the recorders of its runs: one is enough unless runs overlap."""

    def __init__(
        self,
        native: Any,
        lanes: Sequence[Lane],
        choose: Choose,
        keep_bad: int,
        value_limit: int,
        on_full: Callable[[], None] | None,
        on_stop: OnStop | None,
    ) -> None:
        self.graphs: list[ExecutedGraph] = []
        self.tensors: list[ExecutedTensor] = []
        self.lanes = tuple(lanes)
        self._native = native
        self._choose = choose
        self.on_full = on_full
        self.on_stop = on_stop
        self._lock = threading.Lock()
        self._free: list[Recorder] = []
        handle = next(_handles)
        _watches[handle] = self
        given = (NativeLane * len(lanes))(
            *(
                NativeLane(lane.kind, lane.mute_if_healthy, lane.lower_bound, lane.upper_bound)
                for lane in lanes
            )
        )
        tell = ON_FULL() if on_full is None else _on_full
        stop = ON_STOP() if on_stop is None else _on_stop
        self._watch = native.tt_new_watch(
            handle, given, len(lanes), keep_bad, value_limit, _describe, tell, stop
        )
        weakref.finalize(self, native.tt_delete_watch, self._watch)

    def arm(self) -> Armed:
        """See `Watch.arm`."""
        with self._lock:
            recorder = self._free.pop() if self._free else Recorder(self._native, self._watch)
        return NativeArmed(self, recorder)

    def close(self) -> None:
        """See `Watch.close`."""
        with self._lock:
            self._free.clear()

    def give_back(self, recorder: Recorder) -> None:
        """A run is over, another may use its recorder."""
        with self._lock:
            self._free.append(recorder)

    def describe(self, description: Description) -> None:
        """A graph is about to be executed: choose what is seen of it."""
        graph = _read_graph(len(self.graphs), description)
        dtypes = [dtype for node in graph.nodes for dtype in (*node.dtypes, *node.written)]
        reasons = [unreadable(dtype) for dtype in dtypes]
        is_here = "CPU" in graph.device
        if not is_here:
            reasons = [f"it is on {graph.device}"] * len(dtypes)
        with self._lock:
            assert len(self.tensors) == description.first
            self.graphs.append(graph)
            self.tensors += [
                ExecutedTensor(graph.number, node, slot, reason)
                for (node, slot), reason in zip(graph.outputs, reasons, strict=True)
            ]
        chosen = np.asarray(self._choose(graph), np.uint32)
        possible = [
            lanes_for(dtype, self.lanes) | (0 if reason else STOP) if is_here else 0
            for dtype, reason in zip(dtypes, reasons, strict=True)
        ]
        lanes = np.ctypeslib.as_array(description.lanes, (description.output_count,)) if dtypes else chosen
        lanes[:] = chosen & np.array(possible, np.uint32)


_handles = itertools.count(1)
_watches: weakref.WeakValueDictionary[int, NativeWatch] = weakref.WeakValueDictionary()


def _tell_watch(pointer: Any) -> int:
    try:
        watch = _watches.get(pointer.contents.watch)
        if watch is None:
            return 1
        watch.describe(pointer.contents)
    except Exception:
        log.warning(
            "tensortap could not choose what to watch in a graph; nothing of it is seen", exc_info=True
        )
        return 1
    return 0


def _tell_full(handle: int) -> None:
    watch = _watches.get(handle)
    if watch is not None and watch.on_full is not None:
        try:
            watch.on_full()
        except Exception:
            log.warning("tensortap failed while taking records", exc_info=True)


def _tell_stopped(pointer: Any) -> None:
    stopped = pointer.contents
    watch = _watches.get(stopped.watch)
    if watch is None or watch.on_stop is None:
        return
    try:
        tensor = watch.tensors[stopped.number]
        dtype = numpy_dtype(watch.graphs[tensor.graph].nodes[tensor.node].dtypes[tensor.slot])
        memory = (ctypes.c_char * stopped.nbytes).from_address(stopped.data or 0) if stopped.nbytes else b""
        value = np.frombuffer(memory, dtype).reshape(tuple(stopped.dims[: stopped.rank]))
        watch.on_stop(stopped.recorder, stopped.number, value)
    except Exception:
        log.warning("tensortap failed where a run was to stop; it goes on", exc_info=True)


# What the observer calls. Kept here, as nobody else keeps them alive.
_describe, _on_full, _on_stop = DESCRIBE(_tell_watch), ON_FULL(_tell_full), ON_STOP(_tell_stopped)


def _read_graph(number: int, description: Description) -> ExecutedGraph:
    from tensorflow.core.framework import graph_pb2

    serialized = ctypes.string_at(description.graph_def, description.graph_def_size)
    graph_def = graph_pb2.GraphDef.FromString(serialized)
    names = [name_of(number) for number in description.dtypes[: description.output_count]]
    nodes, place = [], 0
    counts = zip(
        description.outputs[: len(graph_def.node)], description.written[: len(graph_def.node)], strict=True
    )
    for node, (made, written) in zip(graph_def.node, counts, strict=True):
        outputs = place + made - written
        nodes.append(
            ExecutedNode(
                node.name,
                node.op,
                node.device,
                tuple(node.input),
                tuple(names[place:outputs]),
                tuple(names[outputs : place + made]),
            )
        )
        place += made
    function, device = description.function.decode(), description.device.decode()
    return ExecutedGraph(number, function, device, tuple(nodes), serialized)


class Recorder:
    """Collects the records of one run at a time; TensorFlow keeps an executor for each."""

    def __init__(self, native: Any, watch: int) -> None:
        self.native = native
        self.handle = native.tt_new_recorder(watch)
        self.id = native.tt_recorder_id(self.handle)
        weakref.finalize(self, native.tt_delete_recorder, self.handle)


_here = threading.local()
"""The recorder of the functions that this thread calls."""


class NativeArmed(Armed):
    """A run, and the recorder that is its own until it is finished."""

    def __init__(self, watch: NativeWatch, recorder: Recorder) -> None:
        self._watch = watch
        self._recorder: Recorder | None = recorder
        self._native = recorder.native
        self.number = recorder.id
        self._lock = threading.Lock()
        self._native.tt_arm(recorder.handle)

    def merge_into(self, options: Any = None) -> Any:
        """See `Armed.merge_into`."""
        merged = tf.compat.v1.RunOptions()
        if options is not None:
            merged.CopyFrom(options)
        watches = merged.debug_options.debug_tensor_watch_opts
        watches.add(node_name=f"{_WATCH_PREFIX}{self.number}", output_slot=0)
        return merged

    def functions(self) -> AbstractContextManager[None]:
        """See `Armed.functions`."""
        function_calls.follow()
        return self._functions()

    @contextmanager
    def _functions(self) -> Iterator[None]:
        recorder = self._recorder
        if recorder is None:
            yield
            return
        outer, _here.recorder = getattr(_here, "recorder", None), recorder
        self._native.tt_watch_functions(recorder.handle)
        try:
            yield
        finally:
            _here.recorder = outer
            self._native.tt_watch_functions(None if outer is None else outer.handle)

    def take(self) -> tuple[Block, ...]:
        """See `Armed.take`."""
        with self._lock:
            recorder = self._recorder
            return () if recorder is None else tuple(_blocks(self._watch, recorder, False))

    def finish(self, run_metadata: Any = None) -> Seen:
        """See `Armed.finish`."""
        with self._lock:
            recorder, self._recorder = self._recorder, None
            if recorder is None:
                return Seen((), (0,) * len(self._watch.lanes))
            self._native.tt_disarm(recorder.handle)
            blocks = tuple(_blocks(self._watch, recorder, True))
            counts = (ctypes.c_int64 * (2 + len(self._watch.lanes)))()
            self._native.tt_counts(recorder.handle, counts)
            self._watch.give_back(recorder)
        faults, dropped, *muted = counts
        return Seen(blocks, tuple(muted), dropped, faults)


def _blocks(watch: NativeWatch, recorder: Recorder, is_last: bool) -> Iterator[Block]:
    taken = Taken()
    while recorder.native.tt_take(recorder.handle, is_last, ctypes.byref(taken)):
        owner = _Owner(recorder.native.tt_give_back, taken.block)
        rows = _array(owner, taken.rows, RECORD_ROW, taken.count)
        executions = _array(owner, taken.executions, EXECUTION, taken.count)
        data = _array(owner, taken.data, np.dtype(np.uint8), taken.used)
        apart: tuple[Apart, ...] = ()
        if taken.has_apart:
            is_apart = (executions["flags"] & _APART) != 0
            pairs = zip(rows[is_apart], executions[is_apart], strict=True)
            apart = tuple(_read_apart(watch, row, execution, data) for row, execution in pairs)
            rows, executions = rows[~is_apart], executions[~is_apart]
        yield Block(rows, executions, data, bool(taken.has_bad), apart)


def _read_apart(watch: NativeWatch, row: np.void, execution: np.void, data: npt.NDArray[np.uint8]) -> Apart:
    memory = data[row["offset"] : row["offset"] + row["nbytes"]].tobytes()
    number, rank = int(row["key"]), int(row["rank"])
    shape, content = struct.unpack_from(f"<{rank}q", memory), memory[8 * rank :]
    tensor = watch.tensors[number]
    value: Any = content
    if watch.graphs[tensor.graph].nodes[tensor.node].dtypes[tensor.slot] == STRING:
        value = _unpack_strings(content, math.prod(shape))
    return Apart(number, execution, int(row["timestamp"]), shape, value)


def _unpack_strings(packed: bytes, count: int) -> list[bytes]:
    """All lengths, then all contents."""
    ends = list(itertools.accumulate(struct.unpack_from(f"<{count}Q", packed), initial=8 * count))
    return [packed[start:end] for start, end in itertools.pairwise(ends)]


class _Owner:
    """Gives a block back when the last view of its memory is gone."""

    def __init__(self, free: Any, block: int) -> None:
        self._free, self._block = free, block

    def __del__(self) -> None:
        self._free(self._block)


def _array(owner: _Owner, address: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    memory: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    memory._owner = owner
    return np.frombuffer(memory, dtype)
