"""Where in a program a node belongs, told by its name: the phase of the step and the module.

The same for timelines and for the analysis, whichever of them reads the graph.
"""

from __future__ import annotations

from tensortap.records import Node

__all__ = ["SOURCES", "module_of", "phase_of"]

SOURCES = frozenset(["Placeholder", "Variable", "Const", "VariableV2", "VarHandleOp", "ReadVariableOp"])
"""Types of nodes whose values come from outside the run."""


def phase_of(node: Node) -> str:
    """Where in a step a node belongs: forward, backward, optimizer, input or parameter.

    >>> phase_of(Node("gradients/model/fc/addmm/mm", "aten::mm")), phase_of(Node("x", "Placeholder"))
    ('backward', 'input')
    """
    if node.name.startswith("gradients/") or node.op_type == "AccumulateGrad" or node.forward is not None:
        return "backward"
    if node.name.startswith("optimizer/"):
        return "optimizer"
    if node.op_type in SOURCES:
        return "parameter" if node.op_type.startswith("Var") else "input"
    return "forward"


def module_of(node: Node) -> str | None:
    """The path of the module a node was executed in, or whose gradient or parameter it works on.

    >>> module_of(Node("gradients/model/fc/addmm/mm", "aten::mm", forward="model/fc/addmm"))
    'model/fc'
    >>> module_of(Node("optimizer/AdamW/model/fc/weight/addcdiv_", "aten::addcdiv_"))
    'model/fc'
    >>> module_of(Node("recompute/model/fc/addmm", "aten::addmm"))
    'model/fc'
    """
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
