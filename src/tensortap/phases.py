"""Where in a program a node belongs: the phase of the step and the module.

The engine that executed a node tells (`Node.phase`, `Node.module`). Graphs that were written before it did, and those
of TensorFlow's own debugger, have names only: what they say is worked out here, and nowhere else.
"""

from __future__ import annotations

import re

from tensortap.records import Node, Position

__all__ = [
    "SOURCES",
    "forward_names",
    "is_fed",
    "is_variable",
    "module_of",
    "parameter_of_gradient",
    "phase_of",
    "position_by_name",
]

_FED = frozenset(
    [
        "Placeholder",
        "PlaceholderWithDefault",
        "_Arg",
        "IteratorGetNext",
        "IteratorGetNextSync",
        "QueueDequeueV2",
        "QueueDequeueManyV2",
        "QueueDequeueUpToV2",
    ]
)
_VARIABLES = frozenset(
    ["Variable", "VariableV2", "VarHandleOp", "ReadVariableOp", "ResourceGather", "ResourceGatherNd"]
)

SOURCES = _FED | _VARIABLES | {"Const"}
"""Types of nodes whose values come from outside the run."""

_GRADIENTS = re.compile(r"(?:^|/)(?:gradients(?:_\d+)?|gradient_tape)/")
_UPDATE = re.compile(r"^(?:Resource)?(?:Sparse)?Apply[A-Z]")


def is_variable(op_type: str) -> bool:
    """Whether nodes of this type are parameters, buffers or state."""
    return op_type in _VARIABLES


def is_fed(op_type: str) -> bool:
    """Whether nodes of this type are the data of a run."""
    return op_type in _FED


def phase_of(node: Node) -> str:
    """Where in a step a node belongs: forward, backward, optimizer, input or parameter.

    >>> phase_of(Node("optimizer/fc/addmm", "aten::addmm", phase="forward", module="optimizer/fc"))
    'forward'
    >>> phase_of(Node("gradients/model/fc/addmm/mm", "aten::mm")), phase_of(Node("x", "Placeholder"))
    ('backward', 'input')
    >>> phase_of(Node("train/Adam/update_w/ResourceApplyAdam", "ResourceApplyAdam"))
    'optimizer'
    """
    return node.phase or _phase_by_name(node)


def module_of(node: Node) -> str | None:
    """The path of the module a node was executed in, or whose gradient or parameter it works on.

    >>> module_of(Node("gradients/model/fc/addmm/mm", "aten::mm", forward="model/fc/addmm"))
    'model/fc'
    >>> module_of(Node("optimizer/AdamW/model/fc/weight/addcdiv_", "aten::addcdiv_"))
    'model/fc'
    >>> module_of(Node("recompute/model/fc/addmm", "aten::addmm"))
    'model/fc'
    """
    return node.module if node.phase else _module_by_name(node)


def parameter_of_gradient(node: Node) -> str:
    """The parameter that a node of the type `AccumulateGrad` has the gradient of."""
    return node.forward if node.forward is not None else node.name.removeprefix("gradients/")


def position_by_name(node: Node) -> Position:
    """Phase and module as names tell them, for graphs without facts."""
    return Position(_phase_by_name(node), _module_by_name(node))


def forward_names(name: str) -> list[str]:
    """What the operation may be called whose gradient a node is part of, the likeliest first; none if it is none.

    >>> forward_names("gradients/dense/MatMul_grad/MatMul_1")
    ['dense/MatMul', 'dense']
    >>> forward_names("gradient_tape/model/dense/MatMul/MatMul_1")[0], forward_names("dense/MatMul")
    ('model/dense/MatMul', [])
    """
    scopes = list(_GRADIENTS.finditer(name))
    if not scopes:
        return []
    parts = name[scopes[-1].end() :].split("/")
    return ["/".join(parts[:count]).removesuffix("_grad") for count in range(len(parts) - 1, 0, -1)]


def _phase_by_name(node: Node) -> str:
    if node.op_type == "AccumulateGrad" or node.forward is not None:
        return "backward"
    if node.name.startswith("optimizer/") or _UPDATE.match(node.op_type) or "/update_" in node.name:
        return "optimizer"
    if is_variable(node.op_type):
        return "parameter"
    if _GRADIENTS.search(node.name):
        return "backward"
    return "input" if node.op_type in SOURCES else "forward"


def _module_by_name(node: Node) -> str | None:
    parts = node.name.split("/")
    if node.forward is not None:
        parts = node.forward.split("/")
    elif node.op_type == "AccumulateGrad":
        parts = parts[1:]
    elif parts[0] == "gradients":
        parts = parts[1:-1]
    elif parts[0] == "optimizer":
        parts = parts[2:-1]
    elif node.op_type == "Const":
        parts = parts[:-1]
    if parts[:1] == ["recompute"]:
        parts = parts[1:]
    return "/".join(parts[:-1]) or None
