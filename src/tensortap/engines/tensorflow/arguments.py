"""What a function is given: its own arguments, and the variables that it uses."""

from __future__ import annotations

from typing import Any

__all__ = ["Arguments", "VariableNames"]

_NAME = "_tensortap_name"  # a variable has no hash to be looked up by


class VariableNames:
    """Names of variables, each of its own: programs that make variables eagerly may give many the same one."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def name_of(self, variable: Any) -> str:
        """The name of a variable, always the same."""
        known: str | None = getattr(variable, _NAME, None)
        if known is None:
            name = str(variable.name).removesuffix(":0")
            count = self._taken[name] = self._taken.get(name, -1) + 1
            known = f"{name}_{count}" if count else name
            setattr(variable, _NAME, known)
        return known


class Arguments:
    """The arguments of one body.

    Args:
        body: the graph of the function.
        signature: of the function that it became.
        names: of variables.
    """

    def __init__(self, body: Any, signature: Any, names: VariableNames) -> None:
        self._placeholders = {
            given.name: tensor.op for given, tensor in zip(signature.input_arg, body.inputs, strict=False)
        }
        handles = {id(variable.handle): variable for variable in body.variables}
        self._variables = {
            inner.op.name: names.name_of(handles[id(outer)])
            for outer, inner in body.captures
            if id(outer) in handles
        }

    def find(self, name: str) -> tuple[Any, str | None] | None:
        """The placeholder that stands for an argument, and the variable it is, if it is one."""
        op = self._placeholders.get(name)
        return None if op is None else (op, self._variables.get(op.name))
