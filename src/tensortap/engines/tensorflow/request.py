"""What one run is asked for: fetches and feeds, which may be TensorFlow's objects, names, or keys of a step.

TensorFlow executes one list of fetches. What it cannot fetch is read beside the run: variables by their name after it,
the step before it, what hooks derived from what was fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensortap.engines.tensorflow.nodes import is_variable_op
from tensortap.errors import FeedError, InvalidArgumentError, OpError, UnknownTensorError
from tensortap.records import Node, split_tensor_name
from tensortap.seam.graph import TensorRef
from tensortap.seam.structure import leaves, map_leaves
from tensortap.suggest import nearest

if TYPE_CHECKING:
    from tensortap.engines.tensorflow.session import Session

__all__ = ["Outcome", "Request", "resolve"]

Pick = Callable[["Outcome"], Any]


@dataclass
class Outcome:
    """What a run has left behind, for fetches to pick from.

    Attributes:
        fetched: values of `Request.fetches`.
        state: values of `Request.state`.
        step: the global step before the run.
    """

    fetched: list[Any]
    state: Mapping[str, Any]
    step: int


@dataclass
class Request:
    """A run's fetches and feeds, as TensorFlow takes them.

    Attributes:
        fetches: what TensorFlow fetches.
        feeds: what TensorFlow is fed.
        state_feeds: values for variables, by name.
        state: variables that are read by name, after the run.
        needs_step: the global step is fetched.
        picks: the structure that was asked for, with a function in the place of each item.
    """

    fetches: list[Any] = field(default_factory=list)
    feeds: dict[Any, Any] = field(default_factory=dict)
    state_feeds: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    needs_step: bool = False
    picks: Any = None
    asked: Any = None
    feed_keys: tuple[str, ...] = ()

    @property
    def executes(self) -> bool:
        """Whether there is anything to run, besides reading state."""
        return bool(self.fetches)

    def values(self, outcome: Outcome) -> Any:
        """What the fetches stand for after the run, in the structure that was asked for."""
        return map_leaves(lambda pick: pick(outcome), self.picks)


def resolve(session: Session, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Request:
    """Sort out what a run is asked for; raises before anything has executed."""
    if feed_dict is not None and not isinstance(feed_dict, Mapping):
        raise TypeError(f"feed_dict must map tensors to values, got {type(feed_dict).__name__}.")
    session.graph.sync()
    request = Request(asked=fetches)
    _Fetches(session, request).resolve(fetches)
    _resolve_feeds(session, request, feed_dict or {})
    return request


class _Fetches:
    """Sorts the fetches of one request."""

    def __init__(self, session: Session, request: Request) -> None:
        self._session = session
        self._graph = session.graph
        self._request = request
        self._variables: dict[str, Any] | None = None
        self._step: Any = None

    def resolve(self, fetches: Any) -> None:
        self._request.picks = map_leaves(self._pick, fetches)

    def _pick(self, item: Any) -> Pick:
        if item is None:
            return self._step_result()
        if isinstance(item, str) and item in self._session.step_keys:
            whole = self._step_result()
            return lambda outcome: whole(outcome)[item]
        if isinstance(item, (str, TensorRef, Node)):
            return self._named(item)
        return self._from_tensorflow(item)

    def _step_result(self) -> Pick:
        if self._session.step is None:
            raise TypeError(
                "A fetch is a tensor, an op or a name. To run without fetches, say what a step is: "
                "tensortap.tensorflow.Session(session, step={'loss': loss, 'train': train_op})."
            )
        if self._step is None:
            self._step = map_leaves(self._from_tensorflow, self._session.step)
        step = self._step
        return lambda outcome: map_leaves(lambda pick: pick(outcome), step)

    def _from_tensorflow(self, item: Any) -> Pick:
        """Anything that TensorFlow itself can fetch."""
        place = len(self._request.fetches)
        self._request.fetches.append(item)
        return lambda outcome: outcome.fetched[place]

    def _named(self, item: str | TensorRef | Node) -> Pick:
        graph = self._graph
        if isinstance(item, str):
            name, slot = split_tensor_name(item)
            if slot is None and name in graph and len(graph.node(name).outputs) != 1:
                return self._from_tensorflow(graph.tf_graph.get_operation_by_name(name))
        try:
            full = graph.as_tensor_name(item)
        except UnknownTensorError as error:
            hint = nearest(str(item), self._session.step_keys)
            raise UnknownTensorError(f"Cannot fetch {item!r}. {error}{hint}") from None
        name = split_tensor_name(full)[0]
        if full == graph.global_step:
            self._request.needs_step = True
            return lambda outcome: outcome.step
        derived = graph.derived(name)
        if derived is not None:
            inputs = [self._named(each) for each in derived.node.inputs]
            node, function = derived.node, derived.function
            return lambda outcome: _derive(node, function, [pick(outcome) for pick in inputs])
        if is_variable_op(graph.node(name).op_type):
            if self._variables is None:
                self._variables = self._session.variables.all()
            if full in self._variables:
                self._request.state[full] = self._variables[full]
                return lambda outcome: outcome.state[full]
        return self._from_tensorflow(graph.tf_graph.get_tensor_by_name(full))


def _derive(node: Node, function: Callable[..., Any], values: list[Any]) -> Any:
    try:
        return function(*values)
    except OpError:
        raise
    except Exception as error:
        described = ", ".join(node.inputs)
        raise InvalidArgumentError(
            node, f"Derived node {node.name!r} of {described} failed: {error}"
        ) from error


def _resolve_feeds(session: Session, request: Request, feed_dict: Mapping[Any, Any]) -> None:
    graph = session.graph
    variables: dict[str, Any] | None = None
    names: dict[str, Any] = {}
    for key, value in feed_dict.items():
        name = (
            getattr(key, "name", None) if not isinstance(key, (str, TensorRef, Node)) else _name(graph, key)
        )
        if isinstance(key, (str, TensorRef, Node)):
            assert name is not None
            if name == graph.global_step:
                raise FeedError("The global step cannot be fed; set `session.global_step` instead.")
            node = split_tensor_name(name)[0]
            if graph.derived(node) is not None:
                raise FeedError(f"{name!r} is derived from other tensors and cannot be fed; feed its inputs.")
            if variables is None:
                variables = session.variables.all()
            if name in variables:
                request.state_feeds[name] = value
            else:
                request.feeds[graph.tf_graph.get_tensor_by_name(name)] = value
        else:
            request.feeds[key] = value
        if isinstance(name, str):
            if name in names:
                raise FeedError(f"{names[name]!r} and {key!r} are the same tensor; feed it once.")
            names[name] = key
    request.feed_keys = tuple(names)


def _name(graph: Any, key: str | TensorRef | Node) -> str:
    try:
        found: str = graph.as_tensor_name(key)
        return found
    except UnknownTensorError as error:
        raise UnknownTensorError(f"Cannot feed {key!r}. {error}") from None


def described(fetches: Any) -> tuple[str, ...]:
    """Names of what is fetched, as far as it has any."""
    return tuple(
        each if isinstance(each, str) else str(getattr(each, "name", each))
        for each in leaves(fetches)
        if each is not None
    )
