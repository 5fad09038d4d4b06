"""What sessions of JAX have in common: state that is replaced and never changed, calls that are executed with taps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tensortap.engines.jax import calls
from tensortap.engines.jax.checkpoint import load_arrays, save_arrays
from tensortap.engines.jax.failures import noting_failures
from tensortap.engines.jax.naming import Named
from tensortap.engines.jax.objects import has_objects, put_into_objects
from tensortap.engines.jax.paths import named_leaves
from tensortap.engines.jax.profiling import step_recorded
from tensortap.engines.jax.programs import Programs
from tensortap.engines.jax.recording.recorder import Recorder
from tensortap.engines.jax.tensors import TENSORS, host_array
from tensortap.engines.observe.names import NameTable
from tensortap.engines.observe.observation import Observation, RunPlan
from tensortap.engines.session.core import EngineSession
from tensortap.pill import kinds_of_elements
from tensortap.records import Device, Node, Position, device_name
from tensortap.seam import place
from tensortap.seam.base import NonFinite
from tensortap.seam.options import RunOptions

__all__ = ["JaxSession", "variable_node"]

_NAMED_KEPT = 256
_OPTIMIZER_WORDS = ("opt", "momentum", "adam", "ema")


def variable_node(name: str, value: Any) -> Node:
    """The node of a part of the state."""
    path = name.removesuffix(":0")
    position = _position(path)
    return Node(
        path,
        "Variable",
        outputs=(TENSORS.spec_of(value),),
        device=TENSORS.device_of(value) if isinstance(value, jax.Array) else "",
        phase=position.phase,
        module=position.module,
    )


def _position(path: str) -> Position:
    is_optimizer = path.split("/")[0].lower().startswith(_OPTIMIZER_WORDS)
    return Position("optimizer" if is_optimizer else "parameter", path.rpartition("/")[0] or None)


class JaxSession(EngineSession):
    """State is a pytree, which a step takes and returns."""

    engine = "jax"
    tensors = TENSORS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._programs = Programs()
        self._names = NameTable()
        self._named: dict[Any, Named] = {}
        self._labelled: Mapping[tuple[int, int], Node] = {}

    def current_state(self) -> Any:
        """The pytree of the state as it is now."""
        return None

    def replace_state(self, state: Any) -> None:
        """Put another state in place."""
        raise NotImplementedError(f"The state of a {type(self).__name__} belongs to the program")

    def state_tensors(self) -> Mapping[str, Any]:
        """Parts of the state by tensor name."""
        return {f"{name}:0": leaf for name, leaf in _named_state(self.current_state())}

    @contextmanager
    def intercepted(self, plan: RunPlan) -> Iterator[Observation]:
        """Execute the compiled calls of the block with taps."""
        if len(self._named) > _NAMED_KEPT:
            self._named.clear()
        recorder = Recorder(
            plan, self._programs, self._names, self.state_tensors(), self._named, variable_node
        )
        self._labelled = recorder.labelled
        try:
            with self.listening(recorder), noting_failures(recorder.seen):
                yield recorder.seen
        finally:
            recorder.seen.unrecorded += self._programs.dropped
            self._programs.dropped = 0
            self.graph.record(recorder.seen.nodes)

    def measured(self, options: RunOptions, seen: Observation) -> AbstractContextManager[None]:
        """With JAX's profiler, if the options ask for it."""
        return step_recorded(options, seen, self._labelled)

    @contextmanager
    def listening(self, recorder: Recorder) -> Iterator[None]:
        """Have calls of the block come to a recorder."""
        calls.listen(recorder)
        try:
            yield
        finally:
            calls.stop_listening(recorder)

    @contextmanager
    def fed_state(self, feeds: Mapping[str, Any]) -> Iterator[None]:
        """Give parts of the state other values inside the block, and the old ones back after it."""
        if not feeds:
            yield
            return
        fitted = {
            name: jax.numpy.asarray(TENSORS.fitting(name, feeds[name], TENSORS.spec_of(value)))
            for name, value in self.state_tensors().items()
            if name in feeds
        }
        old = {name: value for name, value in self.state_tensors().items() if name in feeds}
        self._put(fitted)
        try:
            yield
        finally:
            self._put(old)

    def list_devices(self) -> list[Device]:
        """The devices of this process."""
        return [
            Device(device_name(each.platform, each.id, rank=each.process_index), each.platform.upper())
            for each in jax.local_devices()
        ]

    def rank(self) -> int:
        """Number of this process in a distributed job."""
        return int(jax.process_index()) if jax.process_count() > 1 else place.number()

    def save_state(self, path: Path) -> None:
        """Write the state and the step to one file."""
        save_arrays(path, self.global_step, self.named_arrays())

    def load_state(self, path: Path) -> None:
        """Put the state of a file in place."""
        self.put_arrays(*load_arrays(path, self.named_arrays()))

    def named_arrays(self) -> dict[str, Any]:
        """The arrays of the state, by name."""
        return dict(_named_state(self.current_state()))

    def put_arrays(self, step: int, arrays: Mapping[str, Any]) -> None:
        """Put arrays of a checkpoint in place, and its step."""
        self._put({f"{name}:0": each for name, each in arrays.items()})
        self.global_step = step

    def _put(self, values: Mapping[str, Any]) -> None:
        """Give parts of the state other values, by tensor name."""
        state = self.current_state()
        if has_objects(state):
            put_into_objects(state, values)
        else:
            self.replace_state(_with_leaves(state, values))

    def non_finite_state(self) -> Iterable[NonFinite]:
        """The parts of the state that hold NaN or infinities."""
        for name, leaf in _named_state(self.current_state()):
            array = host_array(leaf)
            kinds = 0 if array is None else kinds_of_elements(array)
            if kinds:
                is_optimizer = _position(name).phase == "optimizer"
                yield NonFinite(name, "optimizer state" if is_optimizer else "parameter", bool(kinds & 1))


def _named_state(state: Any) -> Iterator[tuple[str, Any]]:
    return ((name, leaf) for name, leaf in named_leaves(state) if isinstance(leaf, (jax.Array, np.ndarray)))


def _with_leaves(state: Any, values: Mapping[str, Any]) -> Any:
    """The same state with some leaves replaced, by tensor name."""
    leaves, structure = jax.tree_util.tree_flatten(state)
    names = [name for name, _ in named_leaves(state)]
    return jax.tree_util.tree_unflatten(
        structure, [values.get(f"{name}:0", leaf) for name, leaf in zip(names, leaves, strict=True)]
    )
