"""The functions (`tf.function`) that a program calls eagerly, as something that can be watched run by run."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tensortap.engines.tensorflow.arguments import Arguments, VariableNames
from tensortap.engines.tensorflow.graph import TensorFlowGraph
from tensortap.engines.tensorflow.run import Watchable
from tensortap.errors import UnknownTensorError
from tensortap.records import Node
from tensortap.seam.base import NonFinite
from tensortap.seam.graph import GLOBAL_STEP

__all__ = ["FunctionGraph", "Functions"]

_TRACED = re.compile(r"^__(?:inference|forward|backward)_(.+?)_\d+$")
_OF_KERAS = frozenset(["multi_step_on_iterator", "one_step_on_data", "one_step_on_iterator"])
"""What `fit` calls for a batch: the names of layers say enough."""
_WRITES = re.compile(
    r"^(?:Assign(?:Add|Sub)?VariableOp|Resource(?:Sparse)?Apply\w+|ResourceScatter\w+|Assign\w*)$"
)


class FunctionGraph(TensorFlowGraph):
    """The bodies of all functions that have been called, as far as they still exist."""

    def __init__(self) -> None:
        self._bodies: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._titles: dict[str, str] = {}
        self._variable_names = VariableNames()
        self.called: list[str] = []
        """What the function that is being called has been traced to."""
        self.trains = False
        """Whether it computes gradients and applies something."""
        super().__init__(tf.Graph())

    def add(self, function: Any) -> bool:
        """Take in what a `tf.function` was traced to so far; whether any of it writes to a variable."""
        writes = self.trains = False
        self.called = []
        for concrete in function._list_all_concrete_functions():
            definition = concrete.function_def
            name = definition.signature.name
            self.called.append(name)
            writes |= self._add_body(concrete.graph, name, definition)
        return writes

    def _add_body(self, body: Any, name: str, definition: Any) -> bool:
        known = self._bodies.get(name)
        if known is not None and known is body:
            self.trains |= body._tensortap_facts[1]
            return bool(body._tensortap_facts[0])
        self._bodies[name] = body
        body._tensortap_arguments = Arguments(body, definition.signature, self._variable_names)
        ops = body.get_operations()
        writes = any(_WRITES.match(op.type) for op in ops)
        trains = any("gradient_tape/" in op.name or "Apply" in op.type for op in ops)
        for nested, atomic in body._functions.items():
            inner: Any = getattr(atomic, "graph", None)
            if inner is not None:
                name = nested if isinstance(nested, str) else nested.decode()
                writes |= self._add_body(inner, name, atomic.cached_definition)
                trains |= inner._tensortap_facts[1]
        body._tensortap_facts = writes, trains
        self.trains |= writes and trains
        return writes

    def function(self, name: str) -> Any:
        """The graph of a function's body; None if it is not known here."""
        return self._bodies.get(name)

    def body_of(self, executed: Any) -> tuple[Any, str]:
        """The body of the function that is being called, or of one that it calls."""
        name = executed.function
        if name not in self._bodies:
            # It is not told which one it is: the one that has most of the executed nodes.
            names = {node.name for node in executed.nodes}
            bodies = [each for each in self.called if each in self._bodies]
            name = max(bodies, key=lambda each: self._common(each, names), default="")
        title = self._title_of(name)
        return self._bodies.get(name) or tf.Graph(), f"{title}/" if title else ""

    def argument(self, name: str, body: Any, prefix: str) -> tuple[Any, Node, str] | None:
        """What an argument of a function is known by: a variable by its name, others as the function calls them."""
        arguments = getattr(body, "_tensortap_arguments", None)
        found = None if arguments is None else arguments.find(name)
        if found is None:
            return None
        op, variable = found
        node = self.node_of(op, body)
        if variable is None:
            return op, node, prefix + op.name
        return op, replace(node, op_type="VarHandleOp", phase="parameter", stack=()), variable

    def _common(self, body: str, names: set[str]) -> int:
        return sum(op.name in names for op in self._bodies[body].get_operations())

    def _title_of(self, function: str) -> str:
        """The name the user gave a function, with a number if another has it already."""
        if function not in self._titles:
            match = _TRACED.match(function)
            name = function if match is None else match[1]
            title = "" if name in _OF_KERAS else name
            taken = list(self._titles.values()).count(title)
            self._titles[function] = title if not taken else f"{name}_{taken}"
        return self._titles[function]


class Functions(Watchable):
    """The functions of this program: calls of them are runs."""

    def __init__(self) -> None:
        super().__init__()
        self.graph: FunctionGraph = FunctionGraph()
        self.global_step = 0

    def count_run(self) -> None:
        """A call is over; it was a step if it trains."""
        self.global_step += self.graph.trains

    def non_finite_state(self) -> Iterable[NonFinite]:
        """Nothing: without taps nobody knows which variables a function writes to."""
        return ()

    def run(self, fetches: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Read the step; nothing else can be run, calls are the program's."""
        if fetches == GLOBAL_STEP:
            return self.global_step
        raise UnknownTensorError(
            f"Cannot fetch {fetches!r}: functions are run by the program that calls them."
        )
