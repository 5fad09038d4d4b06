"""Ops of a TensorFlow graph as nodes: what they are, where they belong, whose line made them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

import tensorflow as tf

from tensortap.dtypes import DTYPE_NAMES
from tensortap.engines.tensorflow.lines import stack_of
from tensortap.records import Node, TensorSpec

__all__ = ["NodeMaker", "attributes_of", "dtype_name", "is_variable_op"]

_VARIABLES = frozenset(["VarHandleOp", "VariableV2", "Variable", "_VarHandlesOp", "TemporaryVariable"])
_INPUTS = frozenset(
    ["Placeholder", "PlaceholderWithDefault", "IteratorGetNext", "_Arg", "Const", "OneShotIterator"]
)
_GRADIENTS = re.compile(r"(?:^|/)(?:gradients(?:_\d+)?|gradient_tape)/")
_UPDATE = re.compile(r"^(?:Resource)?(?:Sparse)?Apply[A-Z]")
_ASSIGNMENT = re.compile(r"^Assign(?:Add|Sub)?VariableOp$")
_FARTHEST = 100  # ops between an update and the gradient that it is made of
_LARGEST_CONSTANT = 64  # bytes of a constant that is told with its node


def dtype_name(dtype: Any) -> str:
    """A dtype as records spell it; TensorFlow's own name for one that only it has, such as `resource`."""
    base = dtype.base_dtype
    return DTYPE_NAMES.get(base.as_datatype_enum, str(base.name))


def is_variable_op(op_type: str) -> bool:
    """Whether ops of this type stand for a variable."""
    return op_type in _VARIABLES


class NodeMaker:
    """Makes nodes of the ops of one graph, or of the body of a function.

    Args:
        ops: all of them, because where an op belongs shows in the ops around it.
        trainable: names of variables that are trained.
        is_gradient: the ops are the gradient of something as a whole.
        forward: the ops whose gradient they are then.
    """

    def __init__(
        self,
        ops: Iterable[Any],
        trainable: Collection[str] = (),
        is_gradient: bool = False,
        forward: Iterable[Any] = (),
    ) -> None:
        ops = list(ops)
        self._trainable = trainable
        self._is_gradient = is_gradient
        self._by_name = {op.name: op for op in (*ops, *forward)}
        self._optimizers = tuple(sorted({scope for op in ops for scope in _optimizer_scopes(op)}))
        self._optimizer_state = {
            each.op.name
            for op in ops
            if _UPDATE.match(op.type)
            for each in op.inputs
            if is_variable_op(each.op.type) and each.op.name not in trainable
        }

    def node(self, op: Any) -> Node:
        """The node of an op."""
        forward = self._forward_of(op)
        phase = self._phase_of(op, forward)
        return Node(
            op.name,
            op.type,
            tuple(f"{each.op.name}:{each.value_index}" for each in op.inputs),
            tuple(each.name for each in op.control_inputs),
            tuple(_spec_of(each) for each in op.outputs),
            op.device,
            attributes_of(op.node_def),
            stack_of(op if forward is None else forward),
            None if forward is None else forward.name,
            phase=phase,
            module=self._module_of(op, forward, phase),
        )

    def _forward_of(self, op: Any) -> Any:
        """The op whose gradient an op is a part of; None for others, and where nobody can tell."""
        original = getattr(op, "_original_op", None)
        if original is not None:
            return original
        match = _GRADIENTS.search(op.name)
        if match is None:
            return None
        # gradients/model/dense/MatMul_grad/MatMul_1, gradient_tape/model/dense/MatMul/MatMul_1
        parts = op.name[match.end() :].split("/")
        for count in range(len(parts) - 1, 0, -1):
            name = op.name[: match.start()] + "/".join(parts[:count])
            found = self._by_name.get(name.removesuffix("_grad")) or self._by_name.get(name.lstrip("/"))
            if found is not None and not _GRADIENTS.search(found.name):
                return found
        return None

    def _phase_of(self, op: Any, forward: Any) -> str:
        if (
            f"{op.name}/".startswith(self._optimizers)
            or op.name in self._optimizer_state
            or _UPDATE.match(op.type)
        ):
            return "optimizer"
        if forward is not None or self._is_gradient or _GRADIENTS.search(op.name):
            return "backward"
        if is_variable_op(op.type) or op.type == "ReadVariableOp":
            return "parameter"
        return "input" if op.type in _INPUTS else "forward"

    def _module_of(self, op: Any, forward: Any, phase: str) -> str | None:
        if phase == "optimizer":
            forward = next((each.op for each in op.inputs if is_variable_op(each.op.type)), None)
            if forward is None:
                return None
        name: str = (op if forward is None else forward).name
        return name.rpartition("/")[0] or None


def _optimizer_scopes(op: Any) -> list[str]:
    """The scope of an optimizer, found at its updates: `Adam/` of `Adam/update_model/weight/ResourceApplyAdam`.

    Those of Keras write to variables by ordinary ops, made of gradients: `adam/` of `adam/AssignSubVariableOp_3`.
    """
    if _UPDATE.match(op.type):
        scope, found, _ = op.name.partition("/update_")
        return [scope + "/"] if found else []
    if _ASSIGNMENT.match(op.type):
        scope, found, _ = op.name.partition("/")
        return [scope + "/" if found else op.name + "/"] if _is_made_of_gradients(op) else []
    return []


def _is_made_of_gradients(op: Any) -> bool:
    waiting, seen = [op], {op.name}
    while waiting and len(seen) < _FARTHEST:
        for tensor in waiting.pop(0).inputs:
            before = tensor.op
            if _GRADIENTS.search(before.name):
                return True
            if before.name not in seen:
                seen.add(before.name)
                waiting.append(before)
    return False


def _spec_of(tensor: Any) -> TensorSpec:
    try:
        shape = tuple(tensor.shape.as_list())
    except ValueError:  # not even the number of dimensions is known
        shape = ()
    return TensorSpec(dtype_name(tensor.dtype), shape)


def attributes_of(node_def: Any) -> dict[str, Any]:
    """The arguments of an op, as far as they can be told in plain words and numbers."""
    found = {}
    for key, value in node_def.attr.items():
        if key.startswith("_"):
            continue
        read = _attribute(value)
        if read is not None:
            found[key] = read
    return found


def _attribute(value: Any) -> Any:
    """An argument in plain words and numbers; None for what has no place in a graph, such as a large constant."""
    kind = value.WhichOneof("value")
    if kind in ("i", "b", "f"):
        return getattr(value, kind)
    if kind == "s":
        return value.s.decode("utf-8", "replace")
    if kind == "type":
        return dtype_name(tf.as_dtype(value.type))
    if kind == "shape":
        return (
            "?"
            if value.shape.unknown_rank
            else str([None if d.size < 0 else d.size for d in value.shape.dim])
        )
    if kind == "func":
        return value.func.name
    if kind == "tensor" and value.tensor.ByteSize() <= _LARGEST_CONSTANT:
        return str(tf.make_ndarray(value.tensor).tolist())
    if kind == "list":
        for part in ("i", "f", "b"):
            items = list(getattr(value.list, part))
            if items:
                return items
        return [each.decode("utf-8", "replace") for each in value.list.s] or None
    return None
