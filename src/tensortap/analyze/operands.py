"""What a line of the program calls the operands of an operation.

A tensor in the middle of a step is called after the operation that made it; the program may have a better name for it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

__all__ = ["operand"]

_MOST_LETTERS = 40
_OPERATORS: dict[str, type[ast.operator]] = {
    "div": ast.Div,
    "mul": ast.Mult,
    "sub": ast.Sub,
    "add": ast.Add,
    "pow": ast.Pow,
    "mm": ast.MatMult,
}


def operand(line: str | None, op: str, place: int, modules: Collection[str] = ()) -> str | None:
    """The expression at one place of an operation, if the line has exactly one such operation.

    Args:
        line: of the program.
        op: what the operation is called.
        place: of the operand.
        modules: names of modules whose functions are operations.

    >>> operand("return x / norm.clamp(min=0)", "div", 1)
    'norm.clamp(min=0)'
    >>> operand("loss = -(p * torch.log(q)).sum()", "log", 0, ["torch"])
    'q'
    >>> operand("y = a / b / c", "div", 1) is None
    True
    """
    found = [_operands(each, op, modules) for each in ast.walk(_parsed(line))]
    matching = [each for each in found if each is not None]
    if len(matching) != 1 or place >= len(matching[0]):
        return None
    text = ast.unparse(matching[0][place])
    return text if len(text) <= _MOST_LETTERS and not text.lstrip("-").replace(".", "").isdecimal() else None


def _parsed(line: str | None) -> ast.AST:
    """The line as far as it is Python by itself: the first of a statement that goes on may be none."""
    text = (line or "").strip()
    for attempt in (text, f"{text} pass", text.removeprefix("return ")):
        try:
            return ast.parse(attempt)
        except (SyntaxError, ValueError):
            continue
    return ast.Module([], [])


def _operands(node: ast.AST, op: str, modules: Collection[str]) -> list[ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS.get(op, ())):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, _OPERATORS.get(op, ())):
        return [node.target, node.value]
    if isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr.strip("_") == op:
            module = isinstance(called.value, ast.Name) and called.value.id in modules
            return list(node.args) if module else [called.value, *node.args]
        if isinstance(called, ast.Name) and called.id == op:
            return list(node.args)
    return None
