"""Where in a program a node belongs: the phase of the step and the module.

The engine that executed a node tells (`Node.phase`, `Node.module`). Graphs that were written before it did have names
only: what they say is worked out here, and nowhere else.
"""

from __future__ import annotations

from tensortap.records import Node, Position

__all__ = ["SOURCES", "is_variable", "module_of", "parameter_of_gradient", "phase_of", "position_by_name"]

SOURCES = frozenset(["Placeholder", "Variable", "Const", "VariableV2", "VarHandleOp", "ReadVariableOp"])
"""Types of nodes whose values come from outside the run."""


def is_variable(op_type: str) -> bool:
    """Whether nodes of this type are parameters, buffers or state."""
    return op_type in SOURCES and op_type not in ("Placeholder", "Const")


def phase_of(node: Node) -> str:
    """Where in a step a node belongs: forward, backward, optimizer, input or parameter.

    >>> phase_of(Node("optimizer/fc/addmm", "aten::addmm", phase="forward", module="optimizer/fc"))
    'forward'
    >>> phase_of(Node("gradients/model/fc/addmm/mm", "aten::mm")), phase_of(Node("x", "Placeholder"))
    ('backward', 'input')
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


def _phase_by_name(node: Node) -> str:
    if node.name.startswith("gradients/") or node.op_type == "AccumulateGrad" or node.forward is not None:
        return "backward"
    if node.name.startswith("optimizer/"):
        return "optimizer"
    if node.op_type in SOURCES:
        return "parameter" if is_variable(node.op_type) else "input"
    return "forward"


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
