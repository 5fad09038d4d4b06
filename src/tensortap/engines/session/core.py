"""What every session has, on any engine, whether its step is a function or a block of the user's own loop."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tensortap.engines.observe.limits import Limits
from tensortap.engines.observe.observation import NOT_OBSERVED, Observation, RunPlan
from tensortap.engines.session.request import Request
from tensortap.engines.tensors import Tensors
from tensortap.errors import SessionClosedError
from tensortap.records import Circumstances, Device, Node, RunInfo, TensorSpec, device_name
from tensortap.seam import place
from tensortap.seam.base import NonFinite, default_session
from tensortap.seam.graph import GLOBAL_STEP, Graph, current_graph
from tensortap.seam.options import RunMetadata, RunOptions, TraceLevel
from tensortap.seam.structure import leaves

if TYPE_CHECKING:
    from tensortap.engines.observe.watching import Watching

__all__ = ["EngineSession", "wants_ops"]

log = logging.getLogger("tensortap.engine")


class EngineSession(ABC):
    """Graph, state, observation and closing.

    An engine says what its tensors are, what state there is and how the ops of a run are seen; `StepSession` and
    `BlockSession` add how a run is executed.

    Args:
        graph: the graph to fill; the thread's default graph, or a new one, when left out.
        global_step: where to start counting.
        state: a node for everything that exists before the first run.
    """

    engine: ClassVar[str]
    """Its name, by which analysis finds the words of its operations."""
    tensors: ClassVar[Tensors]
    plan_type: ClassVar[type[RunPlan]] = RunPlan
    unwritten: ClassVar[Container[str]] = ()
    """Types of ops whose outputs nobody has written yet, so that there is nothing in them to be looked at."""

    def __init__(self, graph: Graph | None, global_step: int, state: Iterable[Node] = ()) -> None:
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph= takes a tensortap Graph, got {type(graph).__name__}.")
        if not isinstance(global_step, int):
            raise TypeError(f"global_step= takes a number, got {global_step!r}.")
        self._graph = graph or current_graph() or Graph()
        self._closed = False
        self._lock = threading.Lock()
        self._global_step = global_step
        self._bad_shown: dict[str, int] = {}
        self._watched_runs = 0
        self.circumstances = Circumstances()
        """What whoever cuts a program into runs knows of the present one."""
        self.limits: Limits | None = None
        """Beyond which runs are not recorded that are only watched; None for none."""
        self.stays_installed = False
        """Runs follow each other at once, so what observes them need not be removed between them; see `release`."""
        self.faults = 0
        """How many times observing a run failed; the program was not affected."""
        self._result_keys: tuple[str, ...] | None = None
        self._graph.global_step = GLOBAL_STEP
        step = Node("global_step", "Variable", outputs=(TensorSpec("int64", ()),), phase="parameter")
        self._graph.record([step, *state])

    # --- what an engine provides -------------------------------------------------------------------

    @abstractmethod
    def state_tensors(self) -> Mapping[str, Any]:
        """Live state tensors (parameters, buffers, optimizer state) by tensor name."""

    @abstractmethod
    def intercepted(self, plan: RunPlan) -> AbstractContextManager[Observation]:
        """Watch the ops of the block, and put the nodes seen into the graph.

        Everything that is installed is gone when the block ends, however it ends, or may stay if the plan says so.
        """

    @abstractmethod
    def fed_state(self, feeds: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Give state the fed values inside the block, and put the old ones back after it."""

    def list_devices(self) -> list[Device]:
        """The devices of this process: its CPU, if an engine knows of no others."""
        return [Device(device_name("cpu"), "CPU")]

    def rank(self) -> int:
        """Rank of this process in a distributed job; otherwise the number by which it is known."""
        return place.number()

    def save_state(self, path: Path) -> None:
        """Write the whole state to one file."""
        raise NotImplementedError(f"{type(self).__name__} cannot save its state")

    def load_state(self, path: Path) -> None:
        """Put the state of a file in place."""
        raise NotImplementedError(f"{type(self).__name__} cannot load a state")

    def non_finite_state(self) -> Iterable[NonFinite]:
        """The parts of the state that hold NaN or infinities, which savers ask for before they write."""
        return ()

    def release(self) -> None:
        """Remove what has stayed installed after a run, in the thread of that run; nothing, where nothing stays."""
        return

    def measured(self, options: RunOptions, seen: Observation) -> AbstractContextManager[Any]:
        """Measure the block if the options ask for a trace, and put the result into what was seen."""
        return nullcontext()

    def unobserved(self, options: RunOptions) -> AbstractContextManager[Observation] | None:
        """How to execute a run that is only measured, if observing it would change what is measured."""
        return None

    def plan_of(
        self, request: Request, options: RunOptions, inputs: Mapping[str, Any], watching: Watching | None
    ) -> RunPlan:
        """What a run is observed for."""
        return self.plan_type(
            captures=request.captures,
            feeds=request.feeds,
            taps=tuple(options.taps),
            watching=watching,
            inputs=inputs,
            deadline=RunPlan.until(options.timeout_in_ms),
            traced=options.trace_level > TraceLevel.NO_TRACE,
            limits=self.limits,
            stays_installed=self.stays_installed,
        )

    def plan_again(self, plan: RunPlan, request: Request, options: RunOptions) -> RunPlan:
        """What a run is observed for that follows another one of the same request and options."""
        return plan

    def before_observing(self) -> None:
        """Put in order what earlier runs have left; nothing, where there is nothing."""
        return

    def after_observing(self, plan: RunPlan, seen: Observation, is_only_measured: bool) -> None:
        """Take note of what a run has shown."""
        self.faults += seen.faults
        self._graph.known = True

    # --- what a session is -------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The nodes seen so far, plus those that hooks derived."""
        return self._graph

    @property
    def graph_def(self) -> Any:
        """The graph as a `GraphDef` message."""
        return self._graph.as_graph_def()

    @property
    def sess_str(self) -> str:
        """Empty: the session runs in this process."""
        return ""

    @property
    def global_step(self) -> int:
        """Completed runs of the step, plus the value it started from."""
        return self._global_step

    @global_step.setter
    def global_step(self, value: int) -> None:
        self._global_step = int(value)

    @property
    def result_keys(self) -> tuple[str, ...] | None:
        """Keys of what the step returned last; None before the first run."""
        return self._result_keys

    @result_keys.setter
    def result_keys(self, keys: tuple[str, ...]) -> None:
        if keys != self._result_keys:
            self._result_keys = keys
            self._graph.record_results(keys)

    @property
    def closed(self) -> bool:
        """Whether `close()` has been called."""
        return self._closed

    def close(self) -> None:
        """Refuse further runs; harmless when called again. What is trained is not touched."""
        self._closed = True
        self.release()

    def reopen(self) -> None:
        """Accept runs again, as a monitored session does when it recovers."""
        self._closed = False

    def as_default(self) -> AbstractContextManager[Any]:
        """Make this the default session of the thread, without closing it on exit."""
        return default_session(self)

    def check_open(self) -> None:
        """Raise when the session is closed."""
        if self._closed:
            raise SessionClosedError("This session is closed; make a new one to run the step again.")

    def read_state(self, name: str) -> Any:
        """The present value of a parameter, buffer or optimizer state; None if there is none."""
        found = self.state_tensors().get(name)
        return None if found is None else self.tensors.value_of(found)

    # --- observing ---------------------------------------------------------------------------------

    @contextmanager
    def observed(
        self, request: Request, options: RunOptions, inputs: Mapping[str, Any]
    ) -> Iterator[Observation]:
        """Execute the block as one run: state fed, ops intercepted if the request needs it, step counted."""
        request.step = self._global_step
        with self.fed_state(request.state_feeds):
            is_only_measured = not request.needs_interception and not wants_ops(
                options, measuring_counts=False
            )
            if not request.needs_interception and not wants_ops(options):
                self.release()
                yield NOT_OBSERVED
            elif is_only_measured and (unobserved := self.unobserved(options)) is not None:
                self.release()
                with unobserved as seen:
                    yield seen
            else:
                self.before_observing()
                watching = self.watching_of(request, options)
                plan = self.plan_of(request, options, inputs, watching)
                if self.limits is not None:
                    self.limits.reached = False
                seen = NOT_OBSERVED
                error: str | None = "interrupted"
                try:
                    with self.intercepted(plan) as seen, self.measured(options, seen):
                        yield seen
                    error = None
                except Exception as failure:
                    error = f"{type(failure).__name__}: {failure}"
                    raise
                finally:
                    if watching is not None:
                        self.finish_watching(watching, seen, error)
                self.after_observing(plan, seen, is_only_measured)
            with self._lock:
                self._global_step += 1

    def finish(
        self,
        request: Request,
        result: Any,
        seen: Observation,
        options: RunOptions,
        metadata: RunMetadata | None,
    ) -> Any:
        """The fetched values of a completed run, in the structure that was asked for."""
        request.check_feeds_took_effect(seen, self._graph)
        if metadata is not None:
            metadata.nodes[:] = seen.nodes
            metadata.profile = seen.profile
            if options.output_partition_graphs:
                try:
                    from tensortap.wire.graph_def import nodes_to_proto

                    metadata.partition_graphs[:] = [nodes_to_proto(seen.nodes)]
                except Exception:
                    seen.fault("writing the graph of the run")
                    self.faults += 1
        return request.values(self, result, seen)

    def number_runs_anew(self) -> None:
        """Give the next watched run the number 0: nothing was kept of those before."""
        with self._lock:
            self._watched_runs = 0

    def next_index(self) -> int:
        """The number of the watched run that begins."""
        with self._lock:
            index = self._watched_runs
            self._watched_runs += 1
        return index

    def watching_of(self, request: Request, options: RunOptions) -> Watching | None:
        """What the watches of a run need; a mistake in them raises here, before the step runs."""
        if not options.debug_options.debug_tensor_watch_opts:
            return None
        # Imported by the first watched run: sinks and stores are of no use to others.
        from tensortap.engines.observe.watching import Watching
        from tensortap.sink.publisher import Publisher

        info = RunInfo(
            index=self.next_index(),
            global_step=self._global_step,
            timestamp=time.time_ns() // 1000,
            task=self.rank(),
            fetches=str(request.fetches),
            feed_keys=str(request.feed_keys) if request.feed_keys else "None",
            input_names=request.feed_keys,
            output_names=tuple(str(each) for each in leaves(request.fetches) if each is not None),
        )
        publisher = Publisher(options.debug_options, info)
        keep_bad = options.debug_options.keep_bad
        return Watching(self.tensors, publisher, keep_bad, self._bad_shown, self.unwritten)

    def finish_watching(self, watching: Watching, seen: Observation, error: str | None) -> None:
        """The sinks of a run learn that it is over."""
        try:
            circumstances = self.circumstances.of_run(
                self.engine, watching.publisher.info.index, seen.came_from, tuple(seen.gone)
            )
            watching.finish(self._graph.settled(seen.nodes), error, seen.unrecorded, circumstances)
        except Exception:  # ours, and no reason to lose the user's step
            seen.fault("finishing the watches of a run")


def wants_ops(options: RunOptions, measuring_counts: bool = True) -> bool:
    """Whether options ask for something that only interception can give; being measured may not count as that."""
    return bool(
        options.taps
        or options.debug_options.debug_tensor_watch_opts
        or options.output_partition_graphs
        or options.timeout_in_ms > 0
        or (measuring_counts and options.trace_level > TraceLevel.NO_TRACE)
    )
