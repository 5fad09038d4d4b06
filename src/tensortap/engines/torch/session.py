"""A training step as a session: fetches, feeds and options around ordinary PyTorch code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tensortap.engines.graph import Graph
from tensortap.engines.options import RunMetadata, RunOptions
from tensortap.engines.torch.engine_session import NOT_OBSERVED, EngineSession, wants_ops
from tensortap.engines.torch.failures import as_op_error
from tensortap.engines.torch.program import Program, discover
from tensortap.engines.torch.request import resolve
from tensortap.engines.torch.results import keys_of, placeholders
from tensortap.errors import FeedError

__all__ = ["Session"]


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
        super().__init__(program, graph, global_step, interceptor)

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
        if request.is_state_only and not options.taps and not options.output_partition_graphs:
            return request.values(self, None, NOT_OBSERVED)  # watched or not: reading state executes nothing
        arguments = self._bind(request.arguments)
        seen = NOT_OBSERVED
        inputs: Mapping[str, torch.Tensor] = {}
        if request.needs_interception or wants_ops(options):
            inputs = placeholders(request.arguments)
        try:
            with self.observed(request, options, inputs) as seen:
                result = self.step_fn(*arguments[0], **arguments[1])
                self.result_keys = keys_of(result)
        except Exception as error:
            mapped = as_op_error(error, seen.failed)
            seen.failed = None
            if mapped is None:
                raise
            try:
                raise mapped from error
            finally:
                # Or the frames of the step, with all their tensors, would live until a garbage collection.
                del mapped
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


def _feedable_parameters(step_fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        called = step_fn.forward if isinstance(step_fn, nn.Module) else step_fn
        parameters = dict(inspect.signature(called).parameters)
    except (TypeError, ValueError) as error:
        raise TypeError(f"Cannot read the parameters of step_fn {step_fn!r}: {error}") from error
    if inspect.isgeneratorfunction(step_fn) or inspect.iscoroutinefunction(step_fn):
        raise TypeError(
            f"step_fn {_title(step_fn)} is a generator or a coroutine; calling it executes nothing."
        )
    if "global_step" in parameters:
        raise TypeError(
            f"step_fn {_title(step_fn)} has a parameter global_step, which is the session's own name."
        )
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
