"""A TensorFlow graph as the rest of tensortap knows graphs."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tensortap.engines.tensorflow.nodes import NodeMaker
from tensortap.records import Node, TensorSpec
from tensortap.seam.graph import GLOBAL_STEP, Graph

__all__ = ["TensorFlowGraph", "graph_of"]

_v1 = tf.compat.v1
_GRADIENT_OF = re.compile(r"^(.+?)(?:_rewritten)?_grad_\d+$")
_making = threading.Lock()
_graphs: weakref.WeakKeyDictionary[Any, TensorFlowGraph] = weakref.WeakKeyDictionary()


class TensorFlowGraph(Graph):
    """All ops of a `tf.Graph`, kept up to date, plus what hooks derive.

    Whatever a `tf.Graph` can do besides can be done with this one as well: `graph.get_tensor_by_name(...)`.

    Attributes:
        tf_graph: the graph itself.
    """

    def __init__(self, tf_graph: Any) -> None:
        super().__init__()
        self.tf_graph = tf_graph
        self._read_version = -1
        self._read_ops = 0
        self._makers: dict[str, tuple[Any, NodeMaker]] = {}
        self.sync()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "tf_graph":
            raise AttributeError(name)
        return getattr(self.tf_graph, name)

    def sync(self) -> None:
        """Take in the ops that were added since the last time."""
        tf_graph = self.tf_graph
        if tf_graph.version == self._read_version:
            return
        with self._lock:
            self._read_version = tf_graph.version
            ops = tf_graph.get_operations()
            maker = NodeMaker(ops, self._trainable())
            new = [maker.node(op) for op in ops[self._read_ops :]]
            self._read_ops = len(ops)
            self.record(new)
            self._find_step()
            self.known = True

    def _trainable(self) -> set[str]:
        keys = _v1.GraphKeys
        return {each.op.name for each in self.tf_graph.get_collection(keys.TRAINABLE_VARIABLES)}

    def _find_step(self) -> None:
        """Where the step is counted: in a variable of the graph, or by the session, if there is none."""
        step = self.step_variable()
        if step is not None:
            self.global_step = step.name
        elif self.global_step is None:
            self.global_step = GLOBAL_STEP
            self.record(
                [Node("global_step", "Variable", outputs=(TensorSpec("int64", ()),), phase="parameter")]
            )

    def step_variable(self) -> Any:
        """The variable of the graph in which TensorFlow counts steps; None if there is none."""
        try:
            return _v1.train.get_global_step(self.tf_graph)
        except (TypeError, ValueError):  # something else of that name
            return None

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Make it the default graph of this thread: what `get_default_graph()` returns, TensorFlow's too."""
        with super().as_default(), self.tf_graph.as_default():
            yield self
        self.sync()

    def finalize(self) -> None:
        """Refuse further nodes, and further ops."""
        super().finalize()
        self.sync()
        self.tf_graph.finalize()

    def unfinalize(self) -> None:
        """Accept them again."""
        super().unfinalize()
        self.tf_graph._unsafe_unfinalize()

    def get_collection(self, key: str, scope: str | None = None) -> list[Any]:
        """A collection: what was added here, or else TensorFlow's of the same name."""
        found: list[Any] = super().get_collection(key) or self.tf_graph.get_collection(key, scope)
        return found

    def as_graph_def(self, *args: Any, **kwargs: Any) -> Any:
        """The graph as TensorFlow's `GraphDef` message."""
        return self.tf_graph.as_graph_def(*args, **kwargs)

    def function(self, name: str) -> Any:
        """The graph of a function's body; None if it is not known here."""
        found = self.tf_graph._functions.get(name)
        return getattr(found, "graph", None)

    def body_of(self, executed: Any) -> tuple[Any, str]:
        """The graph that an `ExecutedGraph` was made of, None for this one; and what names of its nodes begin with."""
        if not executed.function:
            return None, ""
        return self.function(executed.function) or tf.Graph(), f"{executed.function}/"

    def argument(self, name: str, body: Any, prefix: str) -> tuple[Any, Node, str] | None:
        """What the argument of a function is known by; a session's graph has none."""
        return None

    def node_of(self, op: Any, tf_graph: Any) -> Node:
        """The node of an op, which may be in the body of a function."""
        if tf_graph is self.tf_graph:
            self.sync()
            if op.name in self:
                return self.node(op.name)
        known = self._makers.get(tf_graph.name if hasattr(tf_graph, "name") else "")
        if known is None or known[0] is not tf_graph:
            name = str(getattr(tf_graph, "name", ""))
            match = _GRADIENT_OF.match(name)
            forward = None if match is None else self.function(match[1])
            ops = [] if forward is None else forward.get_operations()
            maker = NodeMaker(
                tf_graph.get_operations(),
                self._trainable(),
                is_gradient=match is not None or "__backward_" in name,
                forward=ops,
            )
            known = self._makers[name] = tf_graph, maker
        return known[1].node(op)


def graph_of(tf_graph: Any) -> TensorFlowGraph:
    """What stands for a TensorFlow graph: always the same object, as long as somebody uses it."""
    with _making:
        known = _graphs.get(tf_graph)
        if known is None:
            known = _graphs[tf_graph] = TensorFlowGraph(tf_graph)
    known.sync()
    return known
