"""One run that is watched, from before it begins until its records have been handed over.

In our sessions the run is between two lines of `Session.run`. In a monitored session of TensorFlow's own, a hook is
asked in `before_run` and told in `after_run`; each that watches has a `WatchedRun` of its own.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from tensortap.engines.tensorflow.executed import missing_reason
from tensortap.engines.tensorflow.graph import TensorFlowGraph
from tensortap.engines.tensorflow.guard import GuardWatch, SessionGuard
from tensortap.engines.tensorflow.request import described
from tensortap.engines.tensorflow.watching import PlanWatch, show_to_taps
from tensortap.ops.view import TensorView
from tensortap.records import Circumstances, Node, RunInfo
from tensortap.seam.options import RunOptions
from tensortap.sink.base import notices
from tensortap.watch.plan import WatchPlan, plan_watches

if TYPE_CHECKING:
    from tensortap.engines.tensorflow.observer.interface import Armed, Block, Observer
    from tensortap.sink.publisher import Publisher

__all__ = ["Watchable", "WatchedRun", "Watches", "wants_values"]

log = logging.getLogger("tensortap.engine")

_WATCHES_KEPT = 16


def wants_values(options: RunOptions) -> bool:
    """Whether options ask for something that only an observer can see."""
    return bool(options.taps or options.debug_options.debug_tensor_watch_opts)


class Watches:
    """The watches of one session, kept because the executors that TensorFlow made for them are."""

    def __init__(self, session: Watchable) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, int, bool, frozenset[str]], tuple[WatchPlan | None, PlanWatch]] = {}
        self._observer: Observer | None = None

    @property
    def observer(self) -> Observer:
        """What sees tensors here."""
        if self._observer is None:
            from tensortap.engines.tensorflow.observer.choice import make_observer

            self._observer = make_observer()
        return self._observer

    def of(self, options: RunOptions, breakpoints: frozenset[str]) -> PlanWatch:
        """The watch for what a run is watched for, and where it stops."""
        if breakpoints and not self.observer.stops:
            breakpoints = frozenset()
            notices.warn(
                "no stops",
                "A debug server has set breakpoints, and the portable observer of TensorFlow cannot stop there.",
            )
        watches = options.debug_options.debug_tensor_watch_opts
        plan = plan_watches(watches)[0] if watches else None
        keep_bad = options.debug_options.keep_bad
        key = (id(plan), keep_bad, bool(options.taps), breakpoints)
        with self._lock:
            known = self._kept.pop(key, None)
            if known is None:
                made = PlanWatch(
                    self._session.graph, self.observer, plan, keep_bad, bool(options.taps), breakpoints
                )
                known = plan, made
            self._kept[key] = known  # the latest at the end
            if len(self._kept) > _WATCHES_KEPT:
                self._kept.pop(next(iter(self._kept)))[1].close()
        return known[1]

    def close(self) -> None:
        """Nobody will run again."""
        with self._lock:
            for _, watched in self._kept.values():
                watched.close()
            self._kept.clear()


class Watchable:
    """What can be watched run by run: a session, or the functions of a program.

    Attributes:
        graph: what its runs execute.
        circumstances: what whoever cuts a program into runs knows of the present one.
        faults: how many times observing a run failed; the program was not affected.
    """

    engine: ClassVar[str] = "tensorflow"
    graph: TensorFlowGraph
    global_step: int

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched_runs = 0
        self.watches = Watches(self)
        self.circumstances = Circumstances()
        self.faults = 0
        self.known_bad: set[str] = set()
        """What was bad in runs that were watched: no news to a guard."""
        self._guarding = threading.local()

    def begin_watched(self, fetches: Any, feed_keys: Sequence[str], options: RunOptions) -> WatchedRun:
        """Prepare for a run that is watched, which must be finished however it ends."""
        with self._lock:
            index = self._watched_runs
            self._watched_runs += 1
        info = RunInfo(
            index=index,
            global_step=self.global_step,
            timestamp=time.time_ns() // 1000,
            fetches=str(fetches),
            feed_keys=str(tuple(feed_keys)) if feed_keys else "None",
            input_names=tuple(feed_keys),
            output_names=described(fetches),
        )
        return WatchedRun(self, info, options)

    @functools.cached_property
    def guard_watch(self) -> GuardWatch:
        """The taps of runs that are only guarded."""
        return GuardWatch(self)

    def guarded_by(self, armed: Armed | None) -> None:
        """The next run of this thread is guarded; None for no more."""
        self._guarding.armed = armed

    def guard(self) -> SessionGuard:
        """Looks at what runs leave behind that are not watched."""
        return SessionGuard(self)

    def functions_with_guard(self) -> AbstractContextManager[None]:
        """A block in which functions that are called are guarded, if the run is."""
        armed: Armed | None = getattr(self._guarding, "armed", None)
        return nullcontext() if armed is None else armed.functions()

    def with_guard(self, options: Any) -> Any:
        """Options of TensorFlow's for a run, with what makes it a guarded one if it is."""
        armed: Armed | None = getattr(self._guarding, "armed", None)
        return options if armed is None else armed.merge_into(options)

    def number_runs_anew(self) -> None:
        """Give the next watched run the number 0: nothing was kept of those before."""
        with self._lock:
            self._watched_runs = 0


class WatchedRun:
    """A run that is going to be watched, or is.

    Args:
        session: whose run it is.
        info: what is known of it.
        options: what it is watched for.
    """

    def __init__(self, session: Watchable, info: RunInfo, options: RunOptions) -> None:
        self._session = session
        self.info = info
        self._options = options
        self.nodes: list[Node] = []
        self.faults = 0
        self._delivering = threading.Lock()
        self._graphs: set[int] = set()
        self._publisher: Publisher | None = None
        self._watched: PlanWatch
        self._armed: Armed | None = None

    def open(self) -> None:
        """Open the sinks, and prepare to see; a mistake in the watches raises here."""
        if self._options.debug_options.debug_tensor_watch_opts:
            from tensortap.sink.publisher import Publisher

            self._publisher = Publisher(self._options.debug_options, self.info)
        stops = frozenset[str]() if self._publisher is None else self._publisher.breakpoints
        self._watched = self._session.watches.of(self._options, stops)
        self._watched.on_full[id(self)] = lambda: _drain_soon(self)
        self._armed = self._watched.watch.arm()
        if stops:
            self._watched.on_stop[self._armed.number] = self._stop

    def _stop(self, node: Node, slot: int, value: npt.NDArray[Any]) -> None:
        """The run is at a breakpoint: show the value to the server, wait, and put in place what it answers."""
        publisher = self._publisher
        wanted = None if publisher is None else publisher.wants(node, slot)
        if publisher is None or wanted is None:
            return
        publisher.publish(wanted, node, slot, TensorView.of_numpy(value), node.device)
        name = node.tensor(slot)
        given = publisher.replacement(name)
        if given is None:
            return
        if getattr(given, "dtype", None) != value.dtype or given.shape != value.shape:
            log.warning(
                "The value that the debug server sent for %s was not put in place: it is %s%s, the tensor is %s%s.",
                name, getattr(given, "dtype", "no array"), list(np.shape(given)), value.dtype, list(value.shape),
            )  # fmt: skip
            return
        value[...] = given

    def merged_into(self, message: Any) -> Any:
        """Options of TensorFlow's with what makes this a watched run."""
        assert self._armed is not None
        return self._armed.merge_into(message)

    def functions(self) -> Any:
        """A block in which functions that are called are watched."""
        assert self._armed is not None
        return self._armed.functions()

    def finish(self, error: BaseException | None = None, metadata: Any = None) -> None:
        """The run is over: hand its records over. No failure of ours leaves this."""
        armed, self._armed = self._armed, None
        if armed is None:
            return
        try:
            self._watched.on_full.pop(id(self), None)
            self._watched.on_stop.pop(armed.number, None)
            with self._delivering:
                seen = armed.finish(metadata)
            self.faults += seen.faults
            publisher = self._publisher
            for block in seen.blocks:
                self._deliver(block, publisher)
            if publisher is not None:
                self._watched.delivery(publisher).count_muted(seen.muted, publisher)
                if seen.dropped:
                    for sink in publisher.sinks:
                        sink.counts.drop("values of the run did not fit into memory", seen.dropped)
            self.nodes = self._executed(self._graphs)
            self._close(publisher, error)
        except Exception:
            self.faults += 1
            log.warning(
                "tensortap failed to record a run of TensorFlow; the run is not affected.", exc_info=True
            )

    def drain(self) -> None:
        """Hand over what is there already, so that the values of a large run need not all be in memory."""
        armed = self._armed
        if armed is not None:
            with self._delivering:
                publisher = self._publisher
                for block in armed.take():
                    self._deliver(block, publisher)

    def _deliver(self, block: Block, publisher: Publisher | None) -> None:
        self._graphs.update(
            self._watched.watch.tensors[number].graph for number in set(block.rows["key"].tolist())
        )
        self._session.known_bad.update(self._watched.bad_tensors(block))
        if publisher is not None:
            self._watched.delivery(publisher).deliver(block, publisher)
        if self._options.taps:
            show_to_taps(self._watched, block, self._options.taps)

    def _executed(self, graphs: set[int]) -> list[Node]:
        """The nodes of the graphs that were executed: those that left records, and those that always go with them."""
        numbers = graphs or set(range(len(self._watched.watch.graphs)))
        known = self._watched.graphs(numbers)
        nodes = {node.name: node for graph in known for node in graph.listed}
        listed = list(nodes.values())
        graph = self._session.graph
        graph.record([node for node in listed if node.name not in graph])  # others stay as the user made them
        self._known = known
        return listed

    def _close(self, publisher: Publisher | None, error: BaseException | None) -> None:
        if publisher is None:
            return
        session = self._session
        circumstances = session.circumstances.of_run(session.engine, self.info.index, {}, ())
        words = None if error is None else f"{type(error).__name__}: {error}"
        publisher.finish(self.nodes, words, 0, circumstances, self._reason)

    def _reason(self, name: str) -> str:
        return missing_reason(self._session.graph, name, self._known) if name in self._session.graph else ""


_full: queue.SimpleQueue[WatchedRun] = queue.SimpleQueue()
_drains: threading.Thread | None = None
_starting = threading.Lock()


def _drain_soon(run: WatchedRun) -> None:
    """Have a run drained by a thread of ours: who tells us is in the middle of an op."""
    global _drains
    _full.put(run)
    with _starting:
        if _drains is None:
            _drains = threading.Thread(target=_drain, name="tensortap-drain", daemon=True)
            _drains.start()


def _drain() -> None:
    while True:
        run = _full.get()
        try:
            run.drain()
        except Exception:
            run.faults += 1
            log.warning("tensortap failed to take values of a run; the run is not affected.", exc_info=True)
        del run
