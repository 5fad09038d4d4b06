"""A training step as a session: fetches, feeds and options around a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from tensortap.engines.observe.observation import NOT_OBSERVED
from tensortap.engines.session.core import EngineSession, wants_ops
from tensortap.engines.session.request import resolve
from tensortap.engines.session.results import keys_of
from tensortap.errors import FeedError, OpError
from tensortap.records import Node
from tensortap.seam.graph import Graph
from tensortap.seam.options import RunMetadata, RunOptions

__all__ = ["StepSession"]


class StepSession(EngineSession):
    """Runs a function, with tensors fetched and fed by name.

    Args:
        step_fn: one training step. Its parameter names are the feed keys.
        graph: the graph to fill.
        global_step: where to start counting.
        state: a node for everything that exists before the first run.
    """

    def __init__(
        self, step_fn: Callable[..., Any], graph: Graph | None, global_step: int, state: Iterable[Node] = ()
    ) -> None:
        if not callable(step_fn):
            raise TypeError(f"step_fn must be a function, got {type(step_fn).__name__}: {step_fn!r}.")
        self.step_fn = step_fn
        self._parameters = _feedable_parameters(step_fn, self.function_of(step_fn))
        super().__init__(graph, global_step, state)

    def function_of(self, step_fn: Callable[..., Any]) -> Callable[..., Any]:
        """What has the parameters of a step, if that is not the step itself."""
        return step_fn

    def as_op_error(self, error: BaseException, failed: tuple[BaseException, Node] | None) -> OpError | None:
        """The `OpError` for an exception that left the step, or None when it is the program's own."""
        return None

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
        inputs: Mapping[str, Any] = {}
        if request.needs_interception or wants_ops(options):
            inputs = self.tensors.named(request.arguments)
        try:
            with self.observed(request, options, inputs) as seen:
                result = self.step_fn(*arguments[0], **arguments[1])
                self.result_keys = keys_of(result)
        except Exception as error:
            mapped = self.as_op_error(error, seen.failed)
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

    def __enter__(self) -> Self:
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


def _feedable_parameters(
    step_fn: Callable[..., Any], called: Callable[..., Any]
) -> dict[str, inspect.Parameter]:
    try:
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


def _checked(value: Any, kind: type) -> Any:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"Expected a tensortap {kind.__name__}, got {type(value).__name__}: {value!r}.")
    return value
