"""The smallest engine: NumPy functions, recorded by a decorator. docs/engines.md explains how it fits the seam.

from tests.engines import numpy_engine as engine

log = engine.op(np.log)
session = engine.Session(lambda x: {"y": log(x)})
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.engines.observe.names import NameTable
from tensortap.engines.observe.observation import Observation, RunPlan
from tensortap.engines.session.block import BlockSession, Monitor
from tensortap.engines.session.core import EngineSession
from tensortap.engines.session.step import StepSession
from tensortap.engines.tensors import Tensors
from tensortap.errors import FeedError, InvalidArgumentError, OpError
from tensortap.ops.view import TensorView
from tensortap.records import Frame, Node, TensorSpec, device_name
from tensortap.seam.base import NonFinite
from tensortap.seam.graph import Graph

CPU = device_name("cpu")


class NumpyTensors(Tensors):
    """Arrays are what records hold anyway."""

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, (np.ndarray, np.generic))

    def spec_of(self, tensor: Any) -> TensorSpec:
        return TensorSpec(tensor.dtype.name, tensor.shape)

    def view_of(self, tensor: Any) -> TensorView:
        return TensorView.of_numpy(np.asarray(tensor))

    def snapshot(self, tensor: Any) -> Any:
        return np.array(tensor)

    def to_numpy(self, value: Any) -> Any:
        return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value

    def as_fed(self, name: str, value: Any, spec: TensorSpec) -> Any:
        if not self.is_tensor(value):
            return np.asarray(value, spec.dtype)
        if value.dtype.name != spec.dtype:
            raise FeedError(f"Cannot feed {name!r}: it is {spec.dtype}, the fed value is {value.dtype.name}.")
        return np.asarray(value)


TENSORS = NumpyTensors()
_thread = threading.local()


def op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have calls of a function recorded, in runs that are observed."""

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        recorder = getattr(_thread, "recorder", None)
        with np.errstate(all="ignore"):
            return recorder.call(function, args, kwargs) if recorder else function(*args, **kwargs)

    return recorded


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Ops inside belong to the module `name`."""
    before = getattr(_thread, "scope", "")
    _thread.scope = f"{before}{name}/"
    try:
        yield
    finally:
        _thread.scope = before


class Recorder:
    """Makes nodes of the calls of one run, and shows their values to whoever asked."""

    def __init__(self, plan: RunPlan, names: NameTable, state: Mapping[str, Any]) -> None:
        self._plan, self._names = plan, names
        self._outside = {id(value): (name, "Placeholder") for name, value in plan.inputs.items()}
        self._outside |= {id(value): (name.removesuffix(":0"), "Variable") for name, value in state.items()}
        self._made: dict[int, tuple[str, Any]] = {}  # with the array, so that an identity is not given away
        self.seen = Observation()
        names.start_run()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry = self._names.next(getattr(_thread, "scope", ""), function.__name__)
        arrays = [each for each in args if TENSORS.is_tensor(each)]
        inputs = tuple(self._name_of(each) for each in arrays)
        stack = (_frame(sys._getframe(2)),)
        attributes = {key: str(value) for key, value in kwargs.items()}
        node = Node(
            entry.name, f"numpy::{function.__name__}", inputs, device=CPU, attributes=attributes, stack=stack
        )
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            self.seen.failed = error, node
            raise
        name = node.tensor(0)
        if name in self._plan.feeds:
            result = TENSORS.fitting(name, self._plan.feeds[name], TENSORS.spec_of(result))
            self.seen.fed.add(name)
        result = np.asarray(result)
        node = Node(entry.name, node.op_type, inputs, (), (TENSORS.spec_of(result),), CPU, attributes, stack)
        self._made[id(result)] = name, result
        self._show(node, result, arrays)
        return result

    def _name_of(self, value: Any) -> str:
        """Name of an input; of one from outside, which becomes a node at its first use."""
        if id(value) not in self._made:
            name, kind = self._outside.get(id(value), (f"const_{len(self._made)}", "Const"))
            self._made[id(value)] = f"{name}:0", value
            self._show(Node(name, kind, outputs=(TENSORS.spec_of(value),), device=CPU), value, [])
        return self._made[id(value)][0]

    def _show(self, node: Node, value: Any, inputs: list[Any]) -> None:
        self.seen.nodes.append(node)
        if node.tensor(0) in self._plan.captures:
            self.seen.capture(TENSORS, node.tensor(0), value)
        bad = self._plan.watching.bad if self._plan.watching is not None else None
        if bad is not None:
            bad.begin()
        for tap in self._plan.all_taps:
            tap(node, 0, value)
        if bad is not None:
            bad.look(node, [value], inputs, ())


def _frame(frame: Any) -> Frame:
    return Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


class NumpySession(EngineSession):
    """State is arrays by name, which the step changes in place."""

    engine = "numpy"

    tensors = TENSORS
    state: dict[str, np.ndarray[Any, Any]]

    def state_nodes(self) -> list[Node]:
        return [
            Node(name, "Variable", outputs=(TENSORS.spec_of(v),), device=CPU)
            for name, v in self.state.items()
        ]

    def state_tensors(self) -> dict[str, Any]:
        return {f"{name}:0": value for name, value in self.state.items()}

    @contextmanager
    def intercepted(self, plan: RunPlan) -> Iterator[Observation]:
        if not hasattr(self, "_names"):
            self._names = NameTable()
        recorder = _thread.recorder = Recorder(plan, self._names, self.state_tensors())
        try:
            yield recorder.seen
        finally:
            del _thread.recorder
            self.graph.record(recorder.seen.nodes)

    @contextmanager
    def fed_state(self, feeds: Mapping[str, Any]) -> Iterator[None]:
        places = {name: self.state_tensors()[name] for name in feeds}
        fitted = {
            name: TENSORS.fitting(name, feeds[name], TENSORS.spec_of(place)) for name, place in places.items()
        }
        old = {name: place.copy() for name, place in places.items()}
        try:
            for name, place in places.items():
                place[...] = fitted[name]
            yield
        finally:
            for name, place in places.items():
                place[...] = old[name]

    def save_state(self, path: Path) -> None:
        with open(path, "wb") as file:
            np.savez(file, global_step=self.global_step, **self.state)

    def load_state(self, path: Path) -> None:
        with np.load(path) as stored:
            self.global_step = int(stored["global_step"])
            for name, place in self.state.items():
                place[...] = stored[name]

    def non_finite_state(self) -> Iterator[NonFinite]:
        for name, value in self.state.items():
            if not np.isfinite(value).all():
                yield NonFinite(name, "parameter", bool(np.isnan(value).any()))


class Session(NumpySession, StepSession):
    """Runs a function of arrays."""

    def __init__(
        self,
        step_fn: Callable[..., Any],
        state: dict[str, np.ndarray[Any, Any]] | None = None,
        *,
        graph: Graph | None = None,
        global_step: int = 0,
    ) -> None:
        self.state = state or {}
        StepSession.__init__(self, step_fn, graph, global_step, self.state_nodes())

    def as_op_error(self, error: BaseException, failed: tuple[BaseException, Node] | None) -> OpError | None:
        if failed is None or failed[0] is not error:
            return None
        return InvalidArgumentError(
            failed[1], f"{error}\n  raised in {failed[1].name!r} at {failed[1].source}"
        )


class LoopSession(NumpySession, BlockSession):
    """The session behind a monitor."""

    def __init__(self, state: dict[str, np.ndarray[Any, Any]]) -> None:
        self.state = state
        BlockSession.__init__(self, None, 0, self.state_nodes())


def monitor(state: dict[str, np.ndarray[Any, Any]], hooks: Any = None) -> Monitor:
    """Hooks around a loop of one's own."""
    return Monitor(LoopSession(state), hooks, 120)
