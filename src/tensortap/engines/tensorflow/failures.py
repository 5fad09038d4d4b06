"""TensorFlow's errors as ours: with the node that failed and the line that made it, and still TensorFlow's."""

from __future__ import annotations

import functools
import re
from typing import Any

import tensorflow as tf

import tensortap.errors as errors
from tensortap.records import Node
from tensortap.seam.graph import Graph

__all__ = ["mapped_error"]

_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_UNFED = re.compile(r"You must feed a value for placeholder tensor '([^']+)'")


def mapped_error(error: BaseException, graph: Graph) -> BaseException | None:
    """What to raise in the place of an error that left a run of TensorFlow's; None for the error itself.

    Who catches TensorFlow's class catches this one too.
    """
    if isinstance(error, ValueError) and str(error).startswith("Cannot feed value of shape"):
        return errors.FeedError(str(error))
    if not isinstance(error, tf.errors.OpError):
        return None
    unfed = _UNFED.search(error.message)
    if unfed is not None:
        return errors.FeedError(
            f"The run needs {unfed[1]!r}: feed it, as in feed_dict={{{unfed[1] + ':0'!r}: ...}}."
        )
    node = _node_of(error, graph)
    where = "" if node is None else f"\n  raised in {node.name!r}"
    if node is not None and node.own_source is not None:
        where += f", made at {node.own_source}"
    theirs: Any = type(error)
    cls = _both(theirs)
    if cls is None:
        return None
    made: BaseException = cls(error, node, f"{_first_words(error.message)}{where}")
    return made


def _first_words(message: str) -> str:
    """The message without the tracebacks that TensorFlow adds: the line that counts is said in one."""
    return message.partition("\n\nOriginal stack trace for")[0].strip()


def _node_of(error: Any, graph: Graph) -> Node | None:
    names = [] if error.op is None else [error.op.name]
    names += _NODE.findall(error.message)
    for name in names:
        if name in graph:
            return graph.node(name)
    # Inside of functions the name begins with where it was called: what ends like it is it.
    for name in names:
        for part in (name.rpartition("}")[2], name.split("/")[0]):
            if part in graph:
                return graph.node(part)
    return None


@functools.cache
def _both(theirs: Any) -> Any:
    """A class that is ours and theirs."""
    ours = getattr(errors, theirs.__name__, None)
    if ours is None or not issubclass(ours, errors.OpError):
        return None

    def __init__(self: Any, error: Any, node: Node | None, message: str) -> None:
        ours.__init__(self, node, None, message)
        self._node_def, self._op = error.node_def, error.op
        self._message, self._error_code = message, error.error_code
        self._experimental_payloads = getattr(error, "experimental_payloads", {})

    def __reduce__(self: Any) -> Any:  # it may cross to another process, which may have no TensorFlow
        return ours, (self.node, None, self.message)

    def __str__(self: Any) -> str:
        return str(self.args[-1] if not hasattr(self, "_message") else self._message)

    body = {"__init__": __init__, "__reduce__": __reduce__, "__str__": __str__, "stands_for": ours}
    body["__module__"], body["__doc__"] = __name__, ours.__doc__
    body["message"] = ""  # an attribute in ours, a property in theirs
    return type(theirs.__name__, (ours, theirs), body)
