"""`tt.jax.Session`: a step that takes and returns state."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax

from tensortap.engines.jax.engine_session import JaxSession, variable_node
from tensortap.engines.jax.failures import op_error
from tensortap.engines.jax.objects import has_objects
from tensortap.engines.jax.paths import named_leaves
from tensortap.engines.jax.tensors import TENSORS
from tensortap.engines.session.step import StepSession
from tensortap.errors import OpError
from tensortap.records import Node
from tensortap.seam.graph import Graph

__all__ = ["Session"]


class Session(JaxSession, StepSession):
    """Runs a step of JAX, with tensors fetched and fed by name.

    Args:
        step: one training step, normally compiled with `jax.jit`. With a state it is called as `step(state, ...)` and
            returns `(new_state, results)`, or the new state alone; without one, `step(...)` returns results.
        state: a pytree of arrays: parameters, optimizer state, keys. Its paths are names, `params/dense/kernel:0`. Or
            objects of flax's nnx, which the step changes and need not return: a dictionary whose keys are parameters
            of the step is handed to it by these names, `step(model=..., optimizer=..., x=...)`.
        graph: the graph to fill.
        global_step: where to start counting.

    >>> import jax, jax.numpy as jnp
    >>> step = jax.jit(lambda state, x: ({"w": state["w"] * 2}, {"loss": (state["w"] * x).sum()}))
    >>> with Session(step, {"w": jnp.ones(3)}) as session:
    ...     loss = session.run("loss", {"x": 2.0})
    ...     session.run("w:0").tolist(), float(loss)
    ([2.0, 2.0, 2.0], 6.0)
    """

    def __init__(
        self,
        step: Callable[..., Any],
        state: Any = None,
        *,
        graph: Graph | None = None,
        global_step: int = 0,
    ) -> None:
        self._state = state
        nodes = [variable_node(name, leaf) for name, leaf in named_leaves(state) if TENSORS.is_tensor(leaf)]
        called = step if state is None or not callable(step) else self._with_state(step)
        super().__init__(called, graph, global_step, nodes)

    @property
    def state(self) -> Any:
        """The state as it is now."""
        return self._state

    def current_state(self) -> Any:
        """The state as it is now."""
        return self._state

    def replace_state(self, state: Any) -> None:
        """Put another state in place, of the same structure."""
        self._state = state

    def as_op_error(self, error: BaseException, failed: tuple[BaseException, Node] | None) -> OpError | None:
        """The error with node and line for an operation that cannot be traced."""
        return op_error(error, failed)

    def _with_state(self, step: Callable[..., Any]) -> Callable[..., Any]:
        if has_objects(self._state):
            return self._with_objects(step)

        @functools.wraps(step)
        def call(*args: Any, **kwargs: Any) -> Any:
            structure = jax.tree_util.tree_structure(self._state)
            returned = step(self._state, *args, **kwargs)
            if jax.tree_util.tree_structure(returned) == structure:
                self._state = returned
                return None
            if (
                isinstance(returned, tuple)
                and len(returned) == 2
                and jax.tree_util.tree_structure(returned[0]) == structure
            ):
                self._state, result = returned
                return result
            raise TypeError(
                "A step with a state returns the new state, or (new state, results); this one returned "
                f"{jax.tree_util.tree_structure(returned)}, and the state is {structure}."
            )

        signature = inspect.signature(step)
        _first, *rest = signature.parameters.values()
        call.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return call

    def _with_objects(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step, given objects that it changes; it returns results only."""
        signature = inspect.signature(step)
        names = list(signature.parameters)
        is_by_name = isinstance(self._state, dict) and set(self._state) <= set(names)
        given = set(self._state) if is_by_name else {names[0]}

        @functools.wraps(step)
        def call(*args: Any, **kwargs: Any) -> Any:
            rest = dict(zip((name for name in names if name not in given), args, strict=False)) | kwargs
            state = self._state if is_by_name else {names[0]: self._state}
            return step(**state, **rest)

        rest = [each for name, each in signature.parameters.items() if name not in given]
        call.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return call
