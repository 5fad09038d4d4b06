"""Which op a gradient belongs to, where a tape makes gradients inside of a function.

The gradients of graphs know the op they are the gradient of; those of a tape only have the name of its scope.
TensorFlow calls one function for the gradient of each op: around it we say which op it is, as gradients of graphs do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop
from tensorflow.python.framework import ops

__all__ = ["follow_tapes"]


def follow_tapes() -> Callable[[], None]:
    """Have ops of gradients know their forward op from now on; what is returned ends that."""
    theirs: Any = backprop._gradient_function

    @functools.wraps(theirs)
    def gradient(op_name: str, attributes: Any, count: int, inputs: Any, outputs: Any, *rest: Any) -> Any:
        with _made_for(op_name, inputs, outputs):
            return theirs(op_name, attributes, count, inputs, outputs, *rest)

    pywrap_tfe.TFE_Py_RegisterGradientFunction(gradient)
    return lambda: pywrap_tfe.TFE_Py_RegisterGradientFunction(theirs)


def _made_for(op_name: str, inputs: Any, outputs: Any) -> AbstractContextManager[None]:
    """A block in which ops are made for the gradient of an op; it may be eager, and have none."""
    try:
        if backprop.context.executing_eagerly():
            return nullcontext()
        graph: Any = ops.get_default_graph()
        op = _forward(graph, op_name, inputs, outputs)
        found: AbstractContextManager[None] = nullcontext() if op is None else graph._original_op(op)
        return found
    except Exception:  # ours: the gradient is made all the same
        return nullcontext()


def _forward(graph: Any, op_name: str, inputs: Any, outputs: Any) -> Any:
    for tensor in outputs or ():
        if getattr(tensor, "graph", None) is graph:
            return tensor.op
    for tensor in inputs or ():
        if getattr(tensor, "graph", None) is graph:
            users = [each for each in tensor.consumers() if each.type == op_name]
            if len(users) == 1:
                return users[0]
    return None
