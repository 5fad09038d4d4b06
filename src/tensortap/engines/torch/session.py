"""A training step as a session: fetches, feeds and options around ordinary PyTorch code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from tensortap.engines.session.step import StepSession
from tensortap.engines.torch.engine_session import TorchSession
from tensortap.engines.torch.failures import as_op_error
from tensortap.engines.torch.program import Program, discover
from tensortap.errors import OpError
from tensortap.records import Node
from tensortap.seam.graph import Graph

__all__ = ["Session"]


class Session(TorchSession, StepSession):
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
        interceptor: what observes watched runs: `native`, `dispatch` or `auto`; see docs/native.md.

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
        interceptor: str | None = None,
    ) -> None:
        found = discover(step_fn) if callable(step_fn) else Program()
        self.set_up(
            Program(
                found.modules if modules is None else _as_mapping(modules, "model"),
                found.optimizers if optimizers is None else _as_mapping(optimizers, "optimizer"),
                found.extras if extras is None else extras,
            ),
            interceptor,
        )
        StepSession.__init__(self, step_fn, graph, global_step, self.state_nodes())

    def function_of(self, step_fn: Callable[..., Any]) -> Callable[..., Any]:
        """Of a module, the function that says what its parameters are."""
        return step_fn.forward if isinstance(step_fn, nn.Module) else step_fn

    def as_op_error(self, error: BaseException, failed: tuple[BaseException, Node] | None) -> OpError | None:
        """See `failures.py`."""
        return as_op_error(error, failed)


def _as_mapping(given: Any, name: str) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else {name: given}
