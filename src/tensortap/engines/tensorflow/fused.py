"""What several ops became that TensorFlow's optimiser has made one of.

The one is executed under the name of the last of them. It is told with the arguments of what is executed, the names and
lines of all ops inside of it, and as its own line that of the first op that can make a bad value at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from tensortap.engines.tensorflow.lines import stack_of
from tensortap.engines.tensorflow.nodes import attributes_of
from tensortap.engines.tensorflow.observer.interface import ExecutedGraph, ExecutedNode
from tensortap.records import Node

__all__ = ["Fused", "is_fused"]

_NEVER_INSIDE = frozenset(
    [
        "Const",
        "Identity",
        "Placeholder",
        "PlaceholderWithDefault",
        "ReadVariableOp",
        "VarHandleOp",
        "VariableV2",
    ]
)
_HARMLESS = re.compile(
    "Abs|Asinh|Atan|BiasAdd|Ceil|Cos|Elu|Floor|LeakyRelu|Neg|Relu6?|Rint|Round|Selu|Sigmoid|Sin|Tanh"
)
"""They make no NaN and no infinity of finite numbers."""


def is_fused(op_type: str) -> bool:
    """Whether an executed op does what several ops of the program do."""
    return op_type.startswith("_") and ("Fused" in op_type or "Composition" in op_type)


class Fused:
    """Tells of the fused nodes of one executed graph.

    Args:
        executed: the graph.
        origins: for each of its nodes the op that it is named after.
    """

    def __init__(self, executed: ExecutedGraph, origins: Sequence[Any]) -> None:
        self._executed = executed
        self._origins = {id(op) for op in origins if op is not None}

    def told(self, node: Node, op: Any, each: ExecutedNode) -> Node:
        """A node with what is known of the ops inside of it; as it was, if there is only one."""
        if not is_fused(each.op):
            return node
        attributes = attributes_of(self._messages[each.name])
        steps = attributes.get("op_names")
        count = len(steps) if steps else 1 + len(attributes.get("fused_ops") or ())
        inside = self._inside(op, count)
        first = next((part for part in inside if not _HARMLESS.fullmatch(part.type)), inside[0])
        named = {"fused": [_with_line(part) for part in inside]} if len(inside) > 1 else {}
        return replace(node, attributes={**attributes, **named}, stack=stack_of(first) or node.stack)

    @cached_property
    def _messages(self) -> dict[str, Any]:
        return {message.name: message for message in self._executed.graph_def.node}

    def _inside(self, last: Any, count: int) -> list[Any]:
        """The ops that were made one, in the order in which they would have been executed."""
        found = [last]
        for op in found:  # grows
            for tensor in op.inputs:
                before = tensor.op
                if (
                    len(found) < count
                    and id(before) not in self._origins
                    and before.type not in _NEVER_INSIDE
                ):
                    found.append(before)
        return found[::-1]


def _with_line(op: Any) -> str:
    stack = stack_of(op)
    return f"{op.name} ({os.path.basename(stack[-1].file)}:{stack[-1].line})" if stack else str(op.name)
