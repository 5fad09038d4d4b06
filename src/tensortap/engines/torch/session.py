"""A training step as a session: fetches, feeds and options around ordinary PyTorch code."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from tensortap.engines.base import default_session
from tensortap.engines.graph import Graph, current_graph
from tensortap.engines.options import RunMetadata, RunOptions
from tensortap.engines.structure import map_leaves
from tensortap.engines.torch import checkpoint, devices
from tensortap.engines.torch.dispatch import DispatchInterceptor
from tensortap.engines.torch.failures import as_op_error
from tensortap.engines.torch.interceptor import Interceptor, Observation, RunPlan
from tensortap.engines.torch.names import NameTable
from tensortap.engines.torch.program import Program, clean_path, discover, variable_node
from tensortap.engines.torch.request import GLOBAL_STEP, Request, resolve
from tensortap.engines.torch.values import snapshot, to_numpy
from tensortap.errors import FeedError, SessionClosedError
from tensortap.records import Device, Node, TensorSpec

__all__ = ["EngineSession", "Session"]

log = logging.getLogger("tensortap.engine")


class EngineSession:
    """What every PyTorch session has, whether its step is a function or a block of the user's own loop."""

    def __init__(self, program: Program, graph: Graph | None, global_step: int) -> None:
        self.program = program
        self._graph = graph or current_graph() or Graph()
        self._closed = False
        self._lock = threading.Lock()
        self._global_step = global_step
        self._interceptor: Interceptor = DispatchInterceptor()
        self._per_thread = threading.local()
        self._said_compiled = False
        self.faults = 0
        """How many times observing a run failed; the program was not affected."""
        self.result_keys: tuple[str, ...] | None = None
        """Keys of what the step returned last; None before the first run."""
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
    def closed(self) -> bool:
        """Whether `close()` has been called."""
        return self._closed

    def list_devices(self) -> list[Device]:
        """The CPU and the accelerators of this process."""
        return devices.list_devices()

    def close(self) -> None:
        """Refuse further runs; harmless when called again. Modules and optimizers are not touched."""
        self._closed = True

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
            if not request.needs_interception and not _wants_ops(options):
                yield NOT_OBSERVED
            else:
                plan = RunPlan(
                    captures=request.captures,
                    feeds=request.feeds,
                    taps=tuple(options.taps),
                    inputs=inputs,
                    deadline=RunPlan.until(options.timeout_in_ms),
                )
                with self._interceptor.observe(plan, self.program, self._graph, self._names()) as seen:
                    yield seen
                self._after_observing(seen)
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
            if options.output_partition_graphs:
                from tensortap.wire.graph_def import nodes_to_proto

                metadata.partition_graphs[:] = [nodes_to_proto(seen.nodes)]
        return request.values(self, result, seen)

    def check_open(self) -> None:
        """Raise when the session is closed."""
        if self._closed:
            raise SessionClosedError("This session is closed; make a new one to run the step again.")

    def _names(self) -> NameTable:
        # Two threads may run one session; each counts its own ops and so gives the same names.
        table: NameTable | None = getattr(self._per_thread, "names", None)
        if table is None:
            table = self._per_thread.names = NameTable()
        return table

    def _after_observing(self, seen: Observation) -> None:
        self.faults += seen.faults
        self._graph.known = True
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
        from tensortap.engines.torch.feeds import fitting

        tensors = self.state_tensors()
        replaced = [(tensors[name], fitting(name, value, tensors[name])) for name, value in feeds.items()]
        old = [(tensor, snapshot(tensor)) for tensor, _ in replaced]
        try:
            with torch.no_grad():
                for tensor, value in replaced:
                    tensor.copy_(value)
            yield
        finally:
            with torch.no_grad():
                for tensor, value in old:
                    tensor.copy_(value)


class Session(EngineSession):
    """Runs a step of ordinary PyTorch code, with tensors fetched and fed by name.

    Args:
        step_fn: one training step: forward, backward, optimizer. Its parameter names are the feed keys. A run
            without fetches returns what it returns; when that is a mapping, a named tuple or a dataclass, its
            keys can be fetched.
        modules: modules by name. Left out, the modules, optimizers and schedulers that `step_fn` refers to
            are found by the names it uses for them.
        optimizers: optimizers by name, saved in checkpoints.
        extras: other objects with a `state_dict`, saved in checkpoints.
        graph: the graph to fill; the thread's default graph, or a new one, when left out.
        global_step: where to start counting.

    >>> import torch, tensortap as tt
    >>> model = torch.nn.Linear(4, 1)
    >>> def step(x):
    ...     return {"loss": model(x).square().mean()}
    >>> with tt.torch.Session(step) as session:
    ...     loss, hidden = session.run(["loss", "model/addmm:0"], feed_dict={"x": torch.ones(3, 4)})
    >>> hidden.shape
    (3, 1)
    """

    def __init__(
        self,
        step_fn: Callable[..., Any],
        *,
        modules: Mapping[str, nn.Module] | None = None,
        optimizers: Mapping[str, Optimizer] | None = None,
        extras: Mapping[str, Any] | None = None,
        graph: Graph | None = None,
        global_step: int = 0,
    ) -> None:
        if not callable(step_fn):
            raise TypeError(f"step_fn must be a function, got {type(step_fn).__name__}: {step_fn!r}.")
        self.step_fn = step_fn
        self._parameters = _feedable_parameters(step_fn)
        found = discover(step_fn)
        program = Program(
            found.modules if modules is None else _as_mapping(modules, "model"),
            found.optimizers if optimizers is None else _as_mapping(optimizers, "optimizer"),
            found.extras if extras is None else extras,
        )
        super().__init__(program, graph, global_step)

    def run(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """Execute the step once.

        Args:
            fetches: None for what the step returns; or keys of that, tensor names such as
                `model/fc/addmm:0`, and nested lists, tuples and dicts of them. Fetched tensors come as NumPy
                arrays. When all fetches are state (parameters, `global_step:0`) the step is not executed.
            feed_dict: values by step parameter or tensor name. A fed tensor is a constant for this run; fed
                parameters get their value back afterwards.
            options: see `RunOptions`.
            run_metadata: filled as its class says.
        """
        self.check_open()
        options = _checked(options, RunOptions) or RunOptions()
        _checked(run_metadata, RunMetadata)
        request = resolve(self, fetches, feed_dict, tuple(self._parameters))
        if request.is_state_only and not _wants_ops(options):
            return request.values(self, None, NOT_OBSERVED)
        arguments = self._bind(request.arguments)
        seen = NOT_OBSERVED
        inputs: Mapping[str, torch.Tensor] = {}
        if request.needs_interception or _wants_ops(options):
            inputs = _placeholders(request.arguments)
        try:
            with self.observed(request, options, inputs) as seen:
                result = self.step_fn(*arguments[0], **arguments[1])
                self.result_keys = _keys(result)
        except Exception as error:
            mapped = as_op_error(error, seen.failed)
            if mapped is None:
                raise
            raise mapped from error
        return self.finish(request, result, seen, options, run_metadata)

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """A function that runs `fetches`, taking values for `feed_list` as positional arguments."""
        keys = list(feed_list or ())

        def run_fetches(
            *values: Any, options: RunOptions | None = None, run_metadata: RunMetadata | None = None
        ) -> Any:
            if len(values) != len(keys):
                raise FeedError(
                    f"This callable feeds {len(keys)} tensors ({keys}), got {len(values)} values."
                )
            if not accept_options and (options is not None or run_metadata is not None):
                raise TypeError("Make the callable with accept_options=True to pass options or run_metadata.")
            return self.run(fetches, dict(zip(keys, values, strict=True)), options, run_metadata)

        return run_fetches

    def __enter__(self) -> Session:
        self._default = self.as_default()
        self._default.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._default.__exit__(*error)
        self.close()

    def _bind(self, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of the step; a missing one is an error that names it."""
        positional: list[Any] = []
        keywords = dict(given)
        missing = []
        for name, parameter in self._parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if name not in given:
                if parameter.default is parameter.empty:
                    missing.append(name)
                elif parameter.kind is parameter.POSITIONAL_ONLY:
                    positional.append(parameter.default)
            elif parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(keywords.pop(name))
        if missing:
            names = ", ".join(repr(each) for each in missing)
            raise FeedError(
                f"The step {_title(self.step_fn)} needs {names}: feed it, as in "
                f"feed_dict={{{missing[0]!r}: ...}}."
            )
        return positional, keywords


NOT_OBSERVED = Observation()


def _wants_ops(options: RunOptions) -> bool:
    return bool(options.taps or options.output_partition_graphs or options.timeout_in_ms > 0)


def _placeholders(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors handed to the step by name; nested ones under their path."""
    found: dict[str, torch.Tensor] = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            found[name] = value
            continue
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if isinstance(leaf, torch.Tensor):
                keys = (
                    str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path
                )
                found["/".join([name, *(clean_path(key) or "_" for key in keys)])] = leaf
    return found


def _keys(result: Any) -> tuple[str, ...]:
    return tuple(each for each in as_mapping(result) if isinstance(each, str))


def as_mapping(result: Any) -> Mapping[Any, Any]:
    """What a step returned, by key; empty when it has none."""
    if isinstance(result, Mapping):
        return result
    if isinstance(result, tuple) and hasattr(result, "_asdict"):
        return result._asdict()  # type: ignore[no-any-return]
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return {}


def fetched(value: Any) -> Any:
    """A returned value as it is given to whoever fetched it: tensors as NumPy arrays of their own."""
    return map_leaves(
        lambda leaf: to_numpy(snapshot(leaf)) if isinstance(leaf, torch.Tensor) else leaf, value
    )


def _feedable_parameters(step_fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(step_fn).parameters)
    except (TypeError, ValueError) as error:
        raise TypeError(f"Cannot read the parameters of step_fn {step_fn!r}: {error}") from error
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise TypeError(
                f"step_fn {_title(step_fn)} takes *{name}; values are fed by parameter name, so give its "
                "inputs names."
            )
    return parameters


def _title(step_fn: Callable[..., Any]) -> str:
    return f"{getattr(step_fn, '__qualname__', type(step_fn).__name__)}()"


def _as_mapping(given: Any, name: str) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else {name: given}


def _checked(value: Any, kind: type) -> Any:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"Expected a tensortap {kind.__name__}, got {type(value).__name__}: {value!r}.")
    return value
