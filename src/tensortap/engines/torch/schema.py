"""What the schema of an operator says about its arguments: names, writes, views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["Op", "op_of"]

# These return their input as it is (autograd makes them by itself, and not under every interceptor), so
# they are no new values and no nodes.
_TRANSPARENT = {"aten::detach", "aten::alias", "aten::lift", "aten::lift_fresh"}

# Written although the schema does not say so: running statistics of batch norm in training mode.
_UNDECLARED_WRITES = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
}

# By identity, because operators hash themselves in Python; each Op keeps its operator alive.
_ops: dict[int, Op] = {}


class Op:
    """One operator overload, with what the interceptor needs to know of it worked out once."""

    __slots__ = (
        "_written_positions",
        "argument_names",
        "func",
        "is_view",
        "label",
        "op_type",
        "overload",
        "transparent",
        "writes",
    )

    def __init__(self, func: Any) -> None:
        self.func = func
        schema = getattr(func, "_schema", None)
        if schema is None:  # a higher-order operator: opaque, called with nested arguments
            self.op_type = f"higher_order::{func.name()}"
            self.overload = ""
            self.is_view = self.transparent = False
            self.writes: frozenset[str] = frozenset()
            self._written_positions: tuple[int, ...] = ()
            self.argument_names: tuple[str, ...] = ()
        else:
            self.op_type = schema.name
            self.overload = schema.overload_name
            arguments = schema.arguments
            self.argument_names = tuple(each.name for each in arguments)
            declared = {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write}
            self.writes = frozenset(declared) | frozenset(_UNDECLARED_WRITES.get(self.op_type, ()))
            self._written_positions = tuple(
                position for position, name in enumerate(self.argument_names) if name in self.writes
            )
            self.is_view = not declared and any(r.alias_info is not None for r in schema.returns)
            self.transparent = self.op_type in _TRANSPARENT or self.op_type.startswith("profiler::")
        # `_softmax` is called softmax by everybody, and a leading underscore is no valid start of a name.
        self.label = self.op_type.rpartition("::")[2].lstrip("_") or "op"

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[torch.Tensor], list[Any]]:
        """The tensor arguments, flat and in the order of the call, and all the others."""
        tensors: list[torch.Tensor] = []
        others: list[Any] = []
        if not self.argument_names:
            # The other arguments of a higher-order operator are functions, which may hold anything alive.
            return [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)], others
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, torch.Tensor):
                tensors.append(value)
            elif type(value) is list or type(value) is tuple:
                held = [each for each in value if isinstance(each, torch.Tensor)]
                tensors += held
                others.append([each is not None for each in value] if held else _comparable(value))
            else:
                others.append(_comparable(value))
        return tensors, others

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensor arguments that the operator changes."""
        found: list[torch.Tensor] = []
        if self.op_type in _UNDECLARED_WRITES and not self._is_training(args, kwargs):
            return found
        for position in self._written_positions:
            if position < len(args):
                _collect((args[position],), found)
        for name, value in kwargs.items():
            if name in self.writes:
                _collect((value,), found)
        return found

    def attributes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Everything besides the tensors that is needed to call the operator again.

        Plain arguments appear under their name. A tensor argument that may be absent appears as None when
        it is, and as its value when a plain number was given for it; a list of tensors as its length, or as
        a list of None and True when it has gaps.
        """
        found: dict[str, Any] = {"overload": self.overload} if self.overload else {}
        if not self.argument_names:
            return found
        given = dict(self._named(args, kwargs))
        for argument in self.func._schema.arguments:
            value = given.get(argument.name)
            if _holds_tensors(str(argument.type)):
                if isinstance(value, (list, tuple)):
                    gaps = any(each is None for each in value)
                    found[argument.name] = (
                        [each is not None or None for each in value] if gaps else len(value)
                    )
                elif not isinstance(value, torch.Tensor):
                    found[argument.name] = _plain(value)
            elif argument.name in given:
                found[argument.name] = _plain(value)
        return found

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
        yield from zip(self.argument_names, args, strict=False)
        yield from kwargs.items()

    def _is_training(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        return any(bool(value) for name, value in self._named(args, kwargs) if name in ("training", "train"))


_VALUES = frozenset(
    (
        *(bool, int, float, complex, str, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    )
)


def _comparable(value: Any) -> Any:
    """An argument as it can be kept and compared: objects with a life of their own by the name of their kind."""
    if type(value) in _VALUES:
        return value
    if type(value) is list or type(value) is tuple:
        return [_comparable(each) for each in value]
    return f"<{type(value).__qualname__}>"


def op_of(func: Any) -> Op:
    """The `Op` of an overload, made once."""
    found = _ops.get(id(func))
    if found is None:
        found = _ops[id(func)] = Op(func)
    return found


def _collect(values: Iterable[Any], into: list[torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            into.append(value)
        elif type(value) is list or type(value) is tuple:
            into.extend(each for each in value if isinstance(each, torch.Tensor))


def _holds_tensors(schema_type: str) -> bool:
    return "Tensor" in schema_type


def _plain(value: Any) -> Any:
    """An argument in a form that can be stored: numbers, text, lists of them, or its printed name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return str(_comparable(value))
