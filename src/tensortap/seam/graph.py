"""The graph of a session: the nodes its runs executed, plus the nodes that hooks derive from them.

Eager engines learn their graph by running, so a graph grows while the program does new things and its
`version` counts the changes. Finalising it closes it for *hooks* (`add_derived`), as the hook contract
says; the engine still records what the program executes.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from tensortap.errors import GraphFinalizedError, UnknownTensorError
from tensortap.records import Node, TensorSpec, new_node, split_tensor_name, tensor_name
from tensortap.suggest import nearest
from tensortap.untracked import untrack

__all__ = [
    "GLOBAL_STEP",
    "Derived",
    "Graph",
    "GraphKeys",
    "TensorRef",
    "current_graph",
    "get_default_graph",
    "merged_attributes",
]


GLOBAL_STEP = "global_step:0"
"""What every engine that counts steps calls the count, so that hooks can ask for it before there is a session."""

_RUNS_REMEMBERED = 8
_FORMS_REMEMBERED = 8
"""Programs go through a few kinds of runs in turn, such as rollouts and updates."""


class GraphKeys:
    """Names of the graph collections that `Scaffold` reads and fills.

    >>> graph = Graph()
    >>> graph.add_to_collection(GraphKeys.SUMMARY_OP, "loss")
    >>> graph.get_collection(GraphKeys.SUMMARY_OP)
    ['loss']
    """

    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    QUEUE_RUNNERS = "queue_runners"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
    READY_OP = "ready_op"
    SAVERS = "savers"
    SUMMARY_OP = "summary_op"


@dataclass(frozen=True, slots=True)
class Derived:
    """A function of named tensors that a hook added to the graph."""

    node: Node
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor of one particular graph; usable wherever a tensor name is."""

    graph: Graph
    name: str


class Graph:
    """Nodes by name, in the order they were first seen.

    >>> graph = Graph()
    >>> graph.add_derived("grad_norm", lambda g: g.norm(), inputs=["gradients/model/weight:0"])
    'grad_norm:0'
    >>> graph.finalize()
    >>> graph.add_derived("late", abs, inputs=["x:0"])
    Traceback (most recent call last):
    tensortap.errors.GraphFinalizedError: Cannot add node 'late': the graph is finalised. ...
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._derived: dict[str, Derived] = {}
        self._collections: dict[str, list[Any]] = {}
        self._finalized = False
        self._lock = threading.RLock()
        self.version = 0
        self._last_recorded: deque[tuple[tuple[Node, ...], tuple[Node, ...]]] = deque(maxlen=_RUNS_REMEMBERED)
        self._last_version = -1
        # By identity, which recorded nodes keep as long as they are seen: what became of them, and of which of them
        # that is still so. No tuples, which the garbage collector would look at.
        self._seen: dict[int, Node] = {}
        self._settled: dict[int, Node] = {}
        self._in_place: dict[int, Node] = {}
        self._namesakes: dict[str, tuple[int, ...]] = {}
        """By name: which of the recorded nodes are in place."""
        self._forms: dict[str, tuple[Node, ...]] = {}
        """By name: what became of its nodes lately, if that was not always the same."""
        self._merges: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        """Outputs or attributes as they are known and as they are now, by identity; and what is true of both."""
        self._results: set[str] = set()
        self.known = False
        """Whether a run has been traced, so that a name which is not here does not exist."""
        self.global_step: str | None = None
        """Tensor name of the global step, when the engine keeps one."""

    # --- reading -----------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in the order they were first seen."""
        with self._lock:
            return tuple(self._nodes.values())

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def __bool__(self) -> bool:
        # An empty graph is still a graph: `graph or Graph()` must not replace it.
        return True

    def node(self, name: str) -> Node:
        """The node called `name`; an unknown name is an error that suggests the nearest ones."""
        found = self._nodes.get(name)
        if found is None:
            raise UnknownTensorError(f"There is no node {name!r} in the graph.{nearest(name, self._nodes)}")
        return found

    @property
    def has_session(self) -> bool:
        """Whether a session has put its nodes here; a graph that only hooks have extended has none yet."""
        return len(self._nodes) > len(self._derived)

    def tensor_names(self) -> Iterator[str]:
        """Names of all outputs of all nodes."""
        for node in self.nodes:
            for slot in range(len(node.outputs)):
                yield node.tensor(slot)

    def spec(self, tensor: str) -> TensorSpec | None:
        """Dtype and shape of a tensor, if the graph knows it."""
        name, slot = split_tensor_name(tensor)
        node = self._nodes.get(name)
        if node is None or (slot or 0) >= len(node.outputs):
            return None
        return node.outputs[slot or 0]

    def as_tensor_name(self, item: str | TensorRef | Node) -> str:
        """The full tensor name that `item` stands for.

        A name without `:slot` means slot 0 of a node with one output. Names are checked against the
        nodes seen so far and the keys of what steps returned, `loss:0` being another spelling of `loss`;
        before the first traced run every well-formed name is accepted.

        Raises:
            UnknownTensorError: no such tensor, or the node has several outputs and no slot was given.
            ValueError: a reference to a tensor of another graph.
            TypeError: neither a name, a node nor a reference.
        """
        if isinstance(item, TensorRef):
            if item.graph is not self:
                raise ValueError(f"Tensor {item.name!r} belongs to another graph than this session's.")
            item = item.name
        elif isinstance(item, Node):
            item = item.name
        if not isinstance(item, str):
            raise TypeError(
                f"A tensor is named by text such as 'model/fc/addmm:0', got {type(item).__name__}: {item!r}."
            )
        name, slot = split_tensor_name(item)
        node = self._nodes.get(name)
        if node is None:
            if self.known and not (name in self._results and not slot):
                raise UnknownTensorError(
                    f"There is no tensor {item!r} in the graph.{nearest(name, (*self._nodes, *self._results))}"
                )
            return tensor_name(name, slot or 0)
        count = len(node.outputs)
        if slot is None and count > 1:
            raise UnknownTensorError(
                f"Node {name!r} has {count} outputs; say which one, {node.tensor(0)!r} to "
                f"{node.tensor(count - 1)!r}."
            )
        if slot is not None and slot >= max(count, 1):
            raise UnknownTensorError(
                f"There is no tensor {item!r}: node {name!r} has {count} output{'s' * (count != 1)}."
            )
        return tensor_name(name, slot or 0)

    def tensor(self, name: str) -> TensorRef:
        """A reference to a tensor of this graph."""
        return TensorRef(self, self.as_tensor_name(name))

    # --- derived nodes -----------------------------------------------------------------------------

    def add_derived(self, name: str, function: Callable[..., Any], inputs: Sequence[str]) -> str:
        """Add a node that computes `function` of the named tensors in every run that asks for it.

        Only before the graph is finalised, that is in `SessionRunHook.begin`. Adding the same node again
        changes nothing, so `begin` may be called twice.

        Returns:
            The tensor name, to be fetched or watched.
        """
        with self._lock:
            inputs = tuple(self.as_tensor_name(each) if ":" in each else f"{each}:0" for each in inputs)
            existing = self._derived.get(name)
            if existing is not None and existing.node.inputs == inputs:
                return existing.node.tensor(0)
            if self._finalized:
                raise GraphFinalizedError(
                    f"Cannot add node {name!r}: the graph is finalised. Add nodes in begin(), before the "
                    "session is created."
                )
            if not callable(function):
                raise TypeError(f"Derived node {name!r} needs a function, got {type(function).__name__}.")
            if not name or ":" in name:
                raise ValueError(f"{name!r} is no node name: it must be non-empty and without ':'.")
            if name in self._nodes:
                raise ValueError(f"Cannot add node {name!r}: the name is taken.")
            node = Node(name, "Derived", inputs, outputs=(TensorSpec("unknown", ()),))
            self._derived[name] = Derived(node, function)
            self._nodes[name] = node
            self.version += 1
            return node.tensor(0)

    def derived(self, name: str) -> Derived | None:
        """The derived node called `name`, if there is one."""
        return self._derived.get(name)

    # --- recording, for engines --------------------------------------------------------------------

    def record(self, nodes: Iterable[Node]) -> None:
        """Take in nodes an engine has executed or knows to exist.

        A node seen before keeps its place and takes its newest definition; dimensions and arguments that
        have varied become unknown, so that a graph settles although a learning rate changes.
        """
        with self._lock:
            nodes = tuple(nodes)  # is the same object, if it is one already
            if self._recorded(nodes) is not None:
                return
            if len(self._seen) > 4 * len(self._nodes) + _FEW:
                self._forget_seen()
            # Those of a program that does not repeat itself were nearly all seen before, in other runs.
            known = list(map(self._in_place.get, map(id, nodes)))
            if not all(known):
                for place, form in enumerate(known):
                    if form is None:
                        known[place] = self._take_in(nodes[place])
            if self.version != self._last_version:
                self._last_version = self.version
                self._last_recorded.clear()
            settled = tuple(cast(list[Node], known))
            untrack(settled)
            self._last_recorded.append((nodes, settled))

    def _take_in(self, node: Node) -> Node:
        """How this graph knows a node from now on."""
        number, there = id(node), self._nodes.get(node.name, _UNKNOWN)
        form, namesakes = node, self._namesakes.get(node.name, ())
        if there is _UNKNOWN:
            self.version += 1
        elif there is not node:
            form = self._settled.get(number, _UNKNOWN)
            # Else it comes in turns with others, as nodes of a program with two phases, and was worked out then.
            if (
                form is _UNKNOWN
                or form.outputs is not there.outputs
                or form.attributes is not there.attributes
            ):
                form, is_new = self._form_of(node, there)
                self.version += is_new
                if form.outputs is not there.outputs or form.attributes is not there.attributes:
                    for each in namesakes:  # they are to be known by what has varied now
                        self._in_place.pop(each, None)
                    namesakes = ()
        self._seen[number] = node
        self._namesakes[node.name] = (*namesakes, number)
        self._nodes[node.name] = self._settled[number] = self._in_place[number] = form
        return form

    def _forget_seen(self) -> None:
        self._seen.clear()
        self._settled.clear()
        self._in_place.clear()
        self._namesakes.clear()
        self._last_recorded.clear()

    def _recorded(self, nodes: tuple[Node, ...]) -> tuple[Node, ...] | None:
        """How this graph knows nodes that were recorded lately, these very objects; None for others."""
        if self.version != self._last_version:
            return None
        for recorded, settled in self._last_recorded:
            if recorded is nodes:
                return settled
        for place, (recorded, settled) in enumerate(self._last_recorded):
            if len(recorded) == len(nodes) and all(map(operator.is_, recorded, nodes)):
                self._last_recorded[place] = (nodes, settled)  # which will come again
                return settled
        return None

    def _form_of(self, node: Node, known: Node) -> tuple[Node, bool]:
        """A node without what varies, as far as the graph has seen, and whether it has not seen it like that before."""
        settled = self._merged(known, node)
        if settled is known:
            return known, False
        forms = self._forms.get(node.name, (known,))
        for form in forms:  # engines build such nodes anew, now and then
            if form.inputs == settled.inputs and form == settled:
                return form, False
        forms = self._forms[node.name] = (*forms[1 - _FORMS_REMEMBERED :], settled)
        untrack(settled)
        untrack(forms)
        return settled, True

    def _merged(self, known: Node, new: Node) -> Node:
        """The newest definition of a node, without what differs from what is known; its very parts, where nothing does.

        What nodes share, as those of the layers of a model do, they go on sharing.
        """
        outputs, attributes = known.outputs, known.attributes
        if outputs is not new.outputs:
            if len(outputs) != len(new.outputs):
                return new
            merged = self._merges.get((id(outputs), id(new.outputs)))
            outputs = self._merge(outputs, new.outputs, _merged_specs) if merged is None else merged[2]
        if attributes is not new.attributes:
            merged = self._merges.get((id(attributes), id(new.attributes)))
            attributes = (
                self._merge(attributes, new.attributes, merged_attributes) if merged is None else merged[2]
            )
        if outputs is known.outputs and attributes is known.attributes and _stays(known, new):
            return known
        if outputs is new.outputs and attributes is new.attributes:
            return new
        return new_node(
            new.name,
            new.op_type,
            new.inputs,
            new.control_inputs,
            outputs,
            new.device,
            attributes,
            new.stack,
            new.forward,
            new.is_view,
            new.phase,
            new.module,
            new.writes,
        )

    def _merge(self, known: Any, new: Any, merge: Callable[[Any, Any], Any]) -> Any:
        if len(self._merges) >= _FEW:
            self._merges.clear()
        merged = merge(known, new)
        if merged == known:
            merged = known
        self._merges[id(known), id(new)] = (known, new, merged)  # held, as their identities stand for them
        return merged

    def forget(self) -> None:
        """Forget what runs have executed: it will not come back, or be learned again. What hooks derived stays."""
        with self._lock:
            step = self._nodes.get(GLOBAL_STEP.partition(":")[0])
            self._nodes = {} if step is None else {step.name: step}
            self._nodes.update((name, derived.node) for name, derived in self._derived.items())
            self._forget_seen()
            self._forms.clear()
            self._merges.clear()
            self.version += 1

    def record_results(self, keys: Iterable[str]) -> None:
        """Take in keys of what a step returned: they name values too, for hooks of later sessions as well."""
        with self._lock:
            self._results.update(keys)

    def adopt(self, other: Graph) -> None:
        """Take over what hooks added to another graph, on which they began before the session made this one."""
        with self._lock:
            for name, derived in other._derived.items():
                if name in self._nodes and name not in self._derived:
                    raise ValueError(f"Cannot add node {name!r}, which a hook derived: the name is taken.")
                self._derived[name] = derived
                self._nodes[name] = derived.node
            self.version += 1
            for key, items in other._collections.items():
                mine = self._collections.setdefault(key, [])
                mine.extend(item for item in items if not any(item is each for each in mine))

    def settled(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Executed nodes as this graph knows them: without what varies from run to run.

        A program that repeats itself gives the same objects every time, so whoever stores them sees at once
        that there is nothing new.
        """
        with self._lock:
            nodes = tuple(nodes)
            settled = self._recorded(nodes)
            if settled is not None:
                return settled
            return tuple(self._nodes.get(node.name, node) for node in nodes)

    # --- finalisation and collections --------------------------------------------------------------

    @property
    def finalized(self) -> bool:
        """Whether hooks may no longer add nodes."""
        return self._finalized

    def finalize(self) -> None:
        """Refuse further derived nodes."""
        self._finalized = True

    def unfinalize(self) -> None:
        """Accept derived nodes again, as a monitored session does when it closes."""
        self._finalized = False

    def add_to_collection(self, key: str, item: Any) -> None:
        """Append `item` to the collection `key`."""
        with self._lock:
            self._collections.setdefault(key, []).append(item)

    def get_collection(self, key: str) -> list[Any]:
        """A copy of the collection `key`."""
        with self._lock:
            return list(self._collections.get(key, ()))

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Make this the graph that `get_default_graph()` returns in this thread."""
        stack = _default_graphs()
        stack.append(self)
        try:
            yield self
        finally:
            stack.pop()

    def as_graph_def(self) -> Any:
        """The graph as a `GraphDef` message."""
        from tensortap.wire.graph_def import nodes_to_proto

        return nodes_to_proto(self.nodes)


_FEW = 1000
_UNKNOWN: Any = object()


def _merged_specs(known: tuple[TensorSpec, ...], new: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple([a.merged_with(b) for a, b in zip(known, new, strict=True)])


def _stays(known: Node, new: Node) -> bool:
    """Whether a node is as it was, but for outputs and attributes. The parts that change most often come first."""
    return (
        known.inputs == new.inputs
        and known.control_inputs == new.control_inputs
        and known.stack == new.stack
        and known.op_type == new.op_type
        and known.device == new.device
        and known.forward == new.forward
        and known.is_view == new.is_view
    )


VARIES = "(varies)"
"""Stands in a graph for an argument that is not the same in every run."""


def merged_attributes(known: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments of a node as two runs saw them: what differs varies."""
    if known == new:
        return known
    return {key: value if known.get(key, value) == value else VARIES for key, value in new.items()}


_thread = threading.local()


def _default_graphs() -> list[Graph]:
    if not hasattr(_thread, "graphs"):
        _thread.graphs = []
    return _thread.graphs  # type: ignore[no-any-return]


def current_graph() -> Graph | None:
    """The innermost graph made default in this thread, if any."""
    stack = _default_graphs()
    return stack[-1] if stack else None


def get_default_graph() -> Graph:
    """The default graph of this thread: in a hook's `begin`, the one the session will use.

    >>> with Graph().as_default() as graph:
    ...     get_default_graph() is graph
    True
    """
    graph = current_graph()
    if graph is None:
        raise RuntimeError(
            "There is no default graph here. Inside a hook's begin() there is one; elsewhere enter "
            "`with session.graph.as_default():` first."
        )
    return graph
