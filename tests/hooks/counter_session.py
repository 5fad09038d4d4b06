"""A tiny engine in plain Python: a step over numbers, a global step, state on disk, and failures on demand.

It implements the session protocol with nothing but the standard library, so that lifecycle tests can see and
plant everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.errors import SessionClosedError, UnknownTensorError
from tensortap.records import Device, Node, TensorSpec
from tensortap.seam.base import default_session
from tensortap.seam.graph import Graph, current_graph
from tensortap.seam.options import RunMetadata, RunOptions
from tensortap.seam.structure import leaves, map_leaves

GLOBAL_STEP = "global_step:0"


def double(x: float = 1, z: float = 0) -> dict[str, float]:
    """The default step."""
    return {"y": 2 * x, "z": z}


class CounterSession:
    """Counts the executions of a step function of plain values.

    Args:
        step: takes feeds by parameter name and returns a dict.
        failures: for each call of `run` an exception to raise, a function to call, or None.
        close_error: raised by `close`.
        fetches_old_step: a run that executes the step fetches the global step from before it, as engines do
            that execute everything of a run concurrently.
    """

    def __init__(
        self,
        step: Callable[..., Mapping[str, Any]] = double,
        failures: Iterable[Any] = (),
        close_error: Exception | None = None,
        fetches_old_step: bool = False,
    ) -> None:
        self.step = step
        self.failures: Iterator[Any] = iter(failures)
        self.close_error = close_error
        self.fetches_old_step = fetches_old_step
        self.graph = current_graph() or Graph()
        self.graph.global_step = GLOBAL_STEP
        self.graph.record([Node("global_step", "Variable", outputs=(TensorSpec("int64", ()),))])
        self.global_step = 0
        self.closed = False
        self.calls: list[tuple[Any, Any]] = []
        self.options: list[RunOptions | None] = []

    @property
    def graph_def(self) -> Any:
        return self.graph.as_graph_def()

    @property
    def sess_str(self) -> str:
        return ""

    def run(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        if self.closed:
            raise SessionClosedError("The counter session is closed.")
        if fetches is not None and all(each == GLOBAL_STEP for each in leaves(fetches)):
            return map_leaves(lambda _: np.int64(self.global_step), fetches)
        self.calls.append((fetches, feed_dict))
        self.options.append(options)
        failure = next(self.failures, None)
        if isinstance(failure, BaseException):
            raise failure
        if failure is not None:
            failure()
        feeds = {str(getattr(k, "name", k)).removesuffix(":0"): v for k, v in (feed_dict or {}).items()}
        result = self.step(**feeds)
        self.global_step += 1
        if run_metadata is not None:
            run_metadata.step_stats = f"stats of step {self.global_step}"

        def value(fetch: Any) -> Any:
            if fetch is None:
                return result
            if fetch == GLOBAL_STEP:
                return np.int64(self.global_step - self.fetches_old_step)
            name = str(getattr(fetch, "name", fetch)).removesuffix(":0")
            derived = self.graph.derived(name)
            if derived is not None:
                return derived.function(*map(value, derived.node.inputs))
            if name not in result:
                raise UnknownTensorError(f"There is no tensor {fetch!r}.")
            return result[name]

        return map_leaves(value, fetches)

    def make_callable(
        self, fetches: Any, feed_list: Any = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        return lambda *values: self.run(fetches, dict(zip(feed_list or (), values, strict=True)))

    def list_devices(self) -> list[Device]:
        return []

    def as_default(self) -> AbstractContextManager[Any]:
        return default_session(self)

    def save_state(self, path: Path) -> None:
        path.write_text(json.dumps({"global_step": self.global_step}))

    def load_state(self, path: Path) -> None:
        self.global_step = json.loads(path.read_text())["global_step"]

    def reopen(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True
        if self.close_error is not None:
            raise self.close_error
