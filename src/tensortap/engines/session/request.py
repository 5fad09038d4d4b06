"""What one run is asked for, resolved before anything executes.

Fetches and feeds name very different things: keys of what the step returns, step inputs, state, derived
nodes, and tensors in the middle of the run. `resolve` tells them apart and refuses what cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tensortap.engines.observe.observation import Observation
from tensortap.engines.session.results import as_mapping, fetched
from tensortap.errors import FeedError, InvalidArgumentError, OpError, UnknownTensorError
from tensortap.records import Node, split_tensor_name
from tensortap.seam.graph import GLOBAL_STEP, Graph, TensorRef
from tensortap.seam.structure import leaves, map_leaves
from tensortap.suggest import nearest

if TYPE_CHECKING:
    from tensortap.engines.session.core import EngineSession
    from tensortap.engines.tensors import Tensors

__all__ = ["Request", "resolve"]


@dataclass
class Request:
    """A run's fetches and feeds, sorted by what they are.

    Attributes:
        fetches: the structure asked for.
        captures: tensors in the middle of the run whose values are needed.
        arguments: values for the parameters of the step.
        feeds: values for tensors in the middle of the run.
        state_feeds: values for parameters and other state.
        is_state_only: everything fetched can be read without executing the step.
        feed_keys: names of everything that is fed.
        step: the global step the run was executed at, once it was.
    """

    fetches: Any
    captures: frozenset[str] = frozenset()
    arguments: dict[str, Any] = field(default_factory=dict)
    feeds: dict[str, Any] = field(default_factory=dict)
    state_feeds: dict[str, Any] = field(default_factory=dict)
    is_state_only: bool = False
    feed_keys: tuple[str, ...] = ()
    step: int | None = None

    @property
    def needs_interception(self) -> bool:
        """Whether the ops of the run must be seen."""
        return bool(self.captures or self.feeds)

    def check_feeds_took_effect(self, seen: Observation, graph: Graph) -> None:
        """A feed that changed nothing is an error: the caller believes that it did."""
        for name in self.feeds:
            if name not in seen.fed:
                raise UnknownTensorError(
                    f"The run executed no {name!r}, so the fed value had no effect."
                    + _suggest(name, graph, ())
                )

    def values(self, session: EngineSession, result: Any, seen: Observation) -> Any:
        """What the fetches stand for after the run."""
        outcome = _Outcome(self, session, result, as_mapping(result), seen)
        return map_leaves(outcome.value_of, self.fetches)


@dataclass
class _Outcome:
    """What a run has left behind, for fetches to pick from."""

    request: Request
    session: EngineSession
    result: Any
    returned: Mapping[str, Any]
    seen: Observation

    def value_of(self, item: Any) -> Any:
        """What one fetch stands for."""
        session, seen, arguments = self.session, self.seen, self.request.arguments
        if item is None:
            return self.result
        if isinstance(item, str) and item in self.returned:
            return fetched(session.tensors, self.returned[item])
        name = _tensor_name(session, item, tuple(arguments))
        if name in seen.without_data:
            raise UnknownTensorError(
                f"{name!r} had no data in this run: its memory had been freed, or it is only a shape."
            )
        if name in seen.captured:
            return session.tensors.to_numpy(seen.captured[name])
        argument = arguments.get(name.removesuffix(":0"))
        if argument is not None:
            return fetched(session.tensors, argument)
        derived = session.graph.derived(split_tensor_name(name)[0])
        if derived is not None:
            return session.tensors.to_numpy(self._derive(derived.node, derived.function))
        if name == GLOBAL_STEP:
            # Within a run it is the step before the run, whatever has been counted since.
            return np.int64(session.global_step if self.request.step is None else self.request.step)
        state = session.read_state(name)
        if state is not None:
            return state
        if name.removesuffix(":0") in self.returned:
            return fetched(session.tensors, self.returned[name.removesuffix(":0")])
        hint = _suggest(str(item), session.graph, session.result_keys or ())
        if not session.graph.known:
            hint += f" If {item!r} is an op, write {name!r}, so that the run is traced."
        raise UnknownTensorError(f"The step returned no {item!r} and made no such tensor.{hint}")

    def live_value_of(self, name: str) -> Any:
        """An input of a derived node: a tensor where there is one."""
        if name in self.seen.captured:
            return self.seen.captured[name]
        derived = self.session.graph.derived(split_tensor_name(name)[0])
        if derived is not None:
            return self._derive(derived.node, derived.function)
        plain = name.removesuffix(":0")
        for values in (self.returned, self.request.arguments):
            if plain in values:
                return self.session.tensors.detached(values[plain])
        return self.session.tensors.from_numpy(self.value_of(name))

    def _derive(self, node: Node, function: Callable[..., Any]) -> Any:
        values = [self.live_value_of(name) for name in node.inputs]
        try:
            with self.session.tensors.looking():
                return function(*values)
        except OpError:
            raise
        except Exception as error:
            described = ", ".join(node.inputs)
            raise InvalidArgumentError(
                node, f"Derived node {node.name!r} of {described} failed: {error}"
            ) from error


def resolve(
    session: EngineSession,
    fetches: Any,
    feed_dict: Mapping[Any, Any] | None,
    parameters: Sequence[str],
) -> Request:
    """Sort out what a run is asked for; raises before anything has executed."""
    request = Request(fetches)
    if feed_dict is not None and not isinstance(feed_dict, Mapping):
        raise TypeError(f"feed_dict must map names to values, got {type(feed_dict).__name__}.")
    _resolve_feeds(session, request, feed_dict or {}, parameters)
    if fetches is None:
        return request
    state: Mapping[str, Any] | None = None
    captures: set[str] = set()
    needs_step = False
    for item in leaves(fetches):
        if item is None or _is_result_key(item, session):
            needs_step = True
            continue
        name = _tensor_name(session, item, parameters)
        for tensor in _inputs_of(name, session.graph):
            if tensor == GLOBAL_STEP:
                continue
            if state is None:
                state = session.state_tensors()
            if tensor in state:
                continue
            needs_step = True
            key = tensor.removesuffix(":0")
            if key in parameters or (key in (session.result_keys or ()) and key not in session.graph):
                continue  # known without looking into the run
            captures.add(tensor)
    request.captures = frozenset(captures)
    request.is_state_only = not needs_step and not request.feeds and next(leaves(fetches), None) is not None
    return request


def _is_result_key(item: Any, session: EngineSession) -> bool:
    """Whether a fetch is a key of what the step returns.

    Before the first run nobody knows the keys. A bare word such as `loss` is taken for one then: intercepting
    the run to look for an op of that name would be a high price for a guess.
    """
    if not isinstance(item, str):
        return False
    if session.result_keys is not None:
        return item in session.result_keys
    return not {":", "/"} & set(item) and item not in session.graph


def _resolve_feeds(
    session: EngineSession, request: Request, feed_dict: Mapping[Any, Any], parameters: Sequence[str]
) -> None:
    keys: dict[str, Any] = {}
    state: Mapping[str, Any] | None = None
    for key, value in feed_dict.items():
        if isinstance(key, str) and key.removesuffix(":0") in parameters:
            name = key.removesuffix(":0")
            request.arguments[name] = value
        else:
            name = (
                session.graph.as_tensor_name(key)
                if not isinstance(key, str)
                else _feed_name(session, key, parameters)
            )
            if state is None:
                state = session.state_tensors()
            if name == GLOBAL_STEP:
                raise FeedError("The global step cannot be fed; set `session.global_step` instead.")
            if session.graph.derived(split_tensor_name(name)[0]) is not None:
                raise FeedError(f"{name!r} is derived from other tensors and cannot be fed; feed its inputs.")
            if name in state:
                request.state_feeds[name] = value
            else:
                _check_against_graph(session.tensors, name, value, session.graph)
                request.feeds[name] = value
        if name in keys:
            raise FeedError(f"{keys[name]!r} and {key!r} are the same tensor; feed it once.")
        keys[name] = key
    request.feed_keys = tuple(keys)


def _feed_name(session: EngineSession, key: str, parameters: Sequence[str]) -> str:
    try:
        return session.graph.as_tensor_name(key)
    except UnknownTensorError as error:
        if _full(key) in session.state_tensors():  # made since the graph was traced
            return _full(key)
        raise UnknownTensorError(f"Cannot feed {key!r}. {error}{nearest(key, parameters)}") from None


def _tensor_name(session: EngineSession, item: Any, parameters: Sequence[str]) -> str:
    if isinstance(item, np.ndarray) or session.tensors.is_tensor(item):
        raise TypeError(
            f"A fetch is a name, not a {type(item).__name__}. To hand values to the step, write "
            "run(None, feed_dict={...})."
        )
    if not isinstance(item, (str, TensorRef, Node)):
        raise TypeError(
            f"Cannot fetch {item!r} ({type(item).__name__}); a fetch is a key of what the step returns or a "
            "tensor name such as 'model/fc/addmm:0'."
        )
    if isinstance(item, str) and item.removesuffix(":0") in parameters:
        return item.removesuffix(":0") + ":0"
    try:
        return session.graph.as_tensor_name(item)
    except UnknownTensorError as error:
        if isinstance(item, str) and _full(item) in session.state_tensors():
            return _full(item)  # made since the graph was traced
        hint = nearest(str(item), parameters)  # the error has suggested nodes and returned keys already
        if not hint and session.result_keys:
            hint = f" The step returns {', '.join(repr(key) for key in session.result_keys)}."
        raise UnknownTensorError(
            f"Cannot fetch {item!r}. {error}{hint} A tensor that exists only in runs which have not been "
            "traced yet becomes known with RunOptions(output_partition_graphs=True) in such a run."
        ) from None


def _full(name: str) -> str:
    return name if split_tensor_name(name)[1] is not None else f"{name}:0"


def _inputs_of(name: str, graph: Graph) -> list[str]:
    """The tensors a fetch needs: itself, or what a derived node is computed from."""
    derived = graph.derived(split_tensor_name(name)[0])
    if derived is None:
        return [name]
    return [needed for each in derived.node.inputs for needed in _inputs_of(each, graph)]


def _check_against_graph(tensors: Tensors, name: str, value: Any, graph: Graph) -> None:
    """Refuse, before the step runs, what the graph already shows to be impossible."""
    spec = graph.spec(name)
    if spec is not None:
        tensors.fitting(name, value, spec)


def _suggest(name: str, graph: Graph, keys: Sequence[str]) -> str:
    node, _ = split_tensor_name(name)
    return nearest(node, (*keys, *(each.name for each in graph.nodes)))
