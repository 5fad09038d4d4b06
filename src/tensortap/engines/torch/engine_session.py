"""What every PyTorch session has, whether its step is a function or a block of the user's own loop."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tensortap.engines.base import NonFinite, default_session
from tensortap.engines.graph import GLOBAL_STEP, Graph, current_graph
from tensortap.engines.options import RunMetadata, RunOptions, TraceLevel
from tensortap.engines.structure import leaves
from tensortap.engines.torch import checkpoint, devices
from tensortap.engines.torch.choice import Interceptors
from tensortap.engines.torch.feeds import fitting
from tensortap.engines.torch.finite import non_finite_state
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.limits import Limits
from tensortap.engines.torch.memory import readable
from tensortap.engines.torch.names import NameTable
from tensortap.engines.torch.profiling import has_compiled_modules, step_recorded
from tensortap.engines.torch.program import Program, variable_node
from tensortap.engines.torch.request import Request
from tensortap.engines.torch.values import snapshot, to_numpy
from tensortap.errors import FeedError, SessionClosedError
from tensortap.records import Circumstances, Device, Node, RunInfo, TensorSpec

if TYPE_CHECKING:
    from tensortap.engines.torch.watching import Watching

__all__ = ["NOT_OBSERVED", "EngineSession", "wants_ops"]

log = logging.getLogger("tensortap.engine")

NOT_OBSERVED = Observation()
"""What is known of a run that nobody looked into."""


class EngineSession:
    """Graph, state, observation and closing; subclasses add how a run is executed."""

    def __init__(
        self, program: Program, graph: Graph | None, global_step: int, interceptor: str | None = None
    ) -> None:
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph= takes a tensortap Graph, got {type(graph).__name__}.")
        if not isinstance(global_step, int):
            raise TypeError(f"global_step= takes a number, got {global_step!r}.")
        self.program = program
        self._graph = graph or current_graph() or Graph()
        self._closed = False
        self._lock = threading.Lock()
        self._global_step = global_step
        self._interceptors = Interceptors(interceptor)
        self._per_thread = threading.local()
        self._said_compiled = False
        self._bad_shown: dict[str, int] = {}
        self._nothing_compiled = False  # until a run has shown it
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
        step = Node("global_step", "Variable", outputs=(TensorSpec("int64", ()),))
        variables = (
            variable_node(name, tensor, device=devices.name_of(tensor.device))
            for name, tensor in program.variables()
        )
        self._graph.record([step, *variables])

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

    def list_devices(self) -> list[Device]:
        """The CPU and the accelerators of this process."""
        return devices.list_devices()

    def close(self) -> None:
        """Refuse further runs; harmless when called again. Modules and optimizers are not touched."""
        self._closed = True
        self.release()

    def release(self) -> None:
        """Remove what has stayed installed after a run, in the thread of that run."""
        if self.stays_installed:
            self._interceptors.release()

    def reopen(self) -> None:
        """Accept runs again, as a monitored session does when it recovers."""
        self._closed = False

    def as_default(self) -> Any:
        """Make this the default session of the thread, without closing it on exit."""
        return default_session(self)

    def save_state(self, path: Path) -> None:
        """Write modules, optimizers, schedulers, step and random generators to one file."""
        checkpoint.save_state(self.program, self._global_step, Path(path))

    def load_state(self, path: Path) -> None:
        """Put the state of a file in place."""
        self._global_step = checkpoint.load_state(self.program, Path(path))

    def non_finite_state(self) -> Iterable[NonFinite]:
        """Parameters, buffers and optimizer states that hold NaN or infinities."""
        return non_finite_state(self.program)

    # --- state that can be read without a run ------------------------------------------------------

    def read_state(self, name: str) -> Any:
        """The present value of a parameter, buffer or optimizer state; None if there is none."""
        found = self.state_tensors().get(name)
        return None if found is None else to_numpy(snapshot(found))

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Live state tensors by tensor name."""
        return {f"{name}:0": tensor for name, tensor in self.program.variables()}

    # --- observing ---------------------------------------------------------------------------------

    @contextmanager
    def observed(
        self, request: Request, options: RunOptions, inputs: Mapping[str, torch.Tensor]
    ) -> Iterator[Observation]:
        """Execute the block as one run: state fed, ops intercepted if the request needs it, step counted."""
        request.step = self._global_step
        with self._fed_state(request.state_feeds):
            if not request.needs_interception and not wants_ops(options):
                self.release()
                yield NOT_OBSERVED
            elif self._is_only_measured(request, options) and self._runs_compiled():
                self.release()
                seen = Observation()
                with step_recorded(options, seen):  # as it is: observing would make it run eagerly
                    yield seen
            else:
                watching = self._watching(request, options)
                plan = RunPlan(
                    captures=request.captures,
                    feeds=request.feeds,
                    taps=tuple(options.taps),
                    watching=watching,
                    inputs=inputs,
                    deadline=RunPlan.until(options.timeout_in_ms),
                    stays_compiled=self._stays_compiled(request, options, watching),
                    traced=options.trace_level > TraceLevel.NO_TRACE,
                    limits=self.limits,
                    stays_installed=self.stays_installed,
                )
                if self.limits is not None:
                    self.limits.reached = False
                seen = NOT_OBSERVED
                error: str | None = "interrupted"
                try:
                    chosen = self._interceptors.for_run(plan)
                    with (
                        chosen.observe(plan, self.program, self._graph, self._names()) as seen,
                        step_recorded(options, seen),
                    ):
                        yield seen
                    error = None
                except Exception as failure:
                    error = f"{type(failure).__name__}: {failure}"
                    raise
                finally:
                    if watching is not None:
                        try:
                            watching.finish(
                                self._graph.settled(seen.nodes),
                                error,
                                seen.unrecorded,
                                self.circumstances.of_run(
                                    watching.publisher.info.index, seen.came_from, tuple(seen.gone)
                                ),
                            )
                        except Exception:  # ours, and no reason to lose the user's step
                            seen.fault("finishing the watches of a run")
                self._after_observing(plan, seen)
                if seen.ran_compiled and self._is_only_measured(request, options):
                    seen.profile = None  # the next one is of the compiled code, now that it is known
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

    def check_open(self) -> None:
        """Raise when the session is closed."""
        if self._closed:
            raise SessionClosedError("This session is closed; make a new one to run the step again.")

    def _watching(self, request: Request, options: RunOptions) -> Watching | None:
        """What the watches of a run need; a mistake in them raises here, before the step runs."""
        if not options.debug_options.debug_tensor_watch_opts:
            return None
        # Imported by the first watched run: sinks and stores are of no use to others.
        from tensortap.engines.torch.watching import Watching
        from tensortap.sink.publisher import Publisher

        with self._lock:
            index = self._watched_runs
            self._watched_runs += 1
        info = RunInfo(
            index=index,
            global_step=self._global_step,
            timestamp=time.time_ns() // 1000,
            task=devices.rank(),
            fetches=str(request.fetches),
            feed_keys=str(request.feed_keys) if request.feed_keys else "None",
            input_names=request.feed_keys,
            output_names=tuple(str(each) for each in leaves(request.fetches) if each is not None),
        )
        publisher = Publisher(options.debug_options, info)
        return Watching(publisher, options.debug_options.keep_bad, self._bad_shown)

    def number_runs_anew(self) -> None:
        """Give the next watched run the number 0: nothing was kept of those before."""
        with self._lock:
            self._watched_runs = 0

    def _runs_compiled(self) -> bool:
        return self._said_compiled or has_compiled_modules(self.program)

    def _is_only_measured(self, request: Request, options: RunOptions) -> bool:
        return not request.needs_interception and not wants_ops(options, measuring_counts=False)

    def _stays_compiled(self, request: Request, options: RunOptions, watching: Watching | None) -> bool:
        """Whether compiled functions can make all that a run wants of them, in a program that asked for it."""
        return (
            "tensortap.engines.torch.compiled" in sys.modules
            and not self._nothing_compiled
            and watching is not None
            and watching.publisher.takes_summaries_only
            and not watching.stops
            and not (request.captures or request.feeds or options.taps or options.timeout_in_ms > 0)
            and all(parameter.is_cpu for _, parameter in self.program.parameters())
        )

    def _names(self) -> NameTable:
        # Two threads may run one session; each counts its own ops and so gives the same names.
        table: NameTable | None = getattr(self._per_thread, "names", None)
        if table is None:
            table = self._per_thread.names = NameTable()
        return table

    def _after_observing(self, plan: RunPlan, seen: Observation) -> None:
        self.faults += seen.faults
        self._graph.known = True
        if plan.stays_compiled:  # some other step of the program may be the compiled one
            self._nothing_compiled = not seen.stayed_compiled
        elif seen.ran_compiled:
            self._nothing_compiled = False
        if seen.ran_compiled and not self._said_compiled:
            self._said_compiled = True
            log.warning(
                "This step calls a function compiled by torch.compile. Watched runs execute it eagerly, so "
                "that every op is seen; values may differ from the compiled ones by rounding. Other runs "
                "stay compiled."
            )

    @contextmanager
    def _fed_state(self, feeds: Mapping[str, Any]) -> Iterator[None]:
        """Give parameters and other state the fed values for one run, and put the old ones back after it."""
        if not feeds:
            yield
            return
        tensors = self.state_tensors()
        places = {name: readable(tensors[name]) for name in feeds}
        for name, place in places.items():
            if place is None:
                raise FeedError(f"Cannot feed {name!r}: it has no memory to put a value into.")
        replaced = [
            (place, fitting(name, feeds[name], place)) for name, place in places.items() if place is not None
        ]
        old = [(tensor, snapshot(tensor)) for tensor, _ in replaced]
        # Through .data, which leaves version counters alone: a graph kept from before must still be usable.
        try:
            for (tensor, value), name in zip(replaced, feeds, strict=True):
                try:
                    tensor.data.copy_(value)
                except RuntimeError as error:
                    raise FeedError(f"Cannot feed {name!r}: {error}") from error
            yield
        finally:
            for tensor, value in old:
                with suppress(RuntimeError):  # it could not be changed in the first place
                    tensor.data.copy_(value)


def wants_ops(options: RunOptions, measuring_counts: bool = True) -> bool:
    """Whether options ask for something that only interception can give; being measured may not count as that."""
    return bool(
        options.taps
        or options.debug_options.debug_tensor_watch_opts
        or options.output_partition_graphs
        or options.timeout_in_ms > 0
        or (measuring_counts and options.trace_level > TraceLevel.NO_TRACE)
    )
