"""What the schema of an operator says about its arguments: names, writes, views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from tensortap.engines.torch.groups import readable_group, with_ranks

__all__ = ["UNINITIALISED", "Op", "dtype_by_number", "op_of"]

# These return their input as it is (autograd makes them by itself, and not under every interceptor), so
# they are no new values and no nodes.
_TRANSPARENT = {
    *("aten::detach", "aten::detach_", "aten::alias", "aten::lift", "aten::lift_fresh"),
    "_c10d_functional::_wrap_tensor_autograd",
}

# Written although the schema does not say so: running statistics of batch norm in training mode.
_UNDECLARED_WRITES = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
}

# Nor does it of collectives.
_WRITTEN_BY_COLLECTIVES = {
    f"c10d::{name}": (argument,)
    for argument, names in {
        "tensors": "allreduce_ allreduce_coalesced_ broadcast_ reduce_ recv_ recv_any_source_",
        "output_tensor": "_allgather_base_ _reduce_scatter_base_",
        "output_tensors": "allgather_ alltoall_ gather_ scatter_ reduce_scatter_",
        "output_lists": "allgather_coalesced_",
        "outputs": "allgather_into_tensor_coalesced_ reduce_scatter_tensor_coalesced_",
        "output": "alltoall_base_",
    }.items()
    for name in names.split()
}

_COMMUNICATION = ("c10d::", "_c10d_functional::", "c10d_functional::", "_dtensor::")

UNINITIALISED = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized"),
        *("new_empty", "new_empty_strided", "resize_", "resize_as_"),
    )
)
"""Ops whose output is memory as it was found: what it holds means nothing."""

_CALLS_KEPT = 256  # kinds of calls of one operator whose arguments are remembered

_COLLECTIVES = ("c10d::", "_c10d_functional")
_WAIT = "wait_tensor"

# By identity, because operators hash themselves in Python; each Op keeps its operator alive.
_ops: dict[int, Op] = {}


class _Argument(NamedTuple):
    """One argument of a schema, whose own object makes every answer anew."""

    name: str
    kind: str
    holds_tensors: bool
    kwarg_only: bool
    has_default: bool
    default: Any

    @classmethod
    def of(cls, argument: Any) -> _Argument:
        return cls(
            argument.name,
            str(argument.real_type),
            "Tensor" in str(argument.type),
            argument.kwarg_only,
            argument.has_default_value(),
            argument.default_value,
        )


class Op:
    """One operator overload, with what the interceptor needs to know of it worked out once."""

    __slots__ = (
        "_attributes",
        "argument_names",
        "arguments",
        "func",
        "hides_writes",
        "is_collective",
        "is_communication",
        "is_view",
        "is_wait",
        "label",
        "op_type",
        "overload",
        "training_position",
        "transparent",
        "writes",
        "written_positions",
    )

    def __init__(self, func: Any) -> None:
        self.func = func
        self._attributes: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        schema = getattr(func, "_schema", None)
        if schema is None:  # a higher-order operator: opaque, called with nested arguments
            self.op_type = f"higher_order::{func.name()}"
            self.overload = ""
            self.is_view = self.transparent = False
            self.writes: frozenset[str] = frozenset()
            self.written_positions: tuple[int, ...] = ()
            self.hides_writes = False
            self.training_position = -1
            self.argument_names: tuple[str, ...] = ()
            self.arguments: tuple[_Argument, ...] = ()
        else:
            self.op_type = schema.name
            self.overload = schema.overload_name
            arguments = schema.arguments
            self.arguments = tuple(map(_Argument.of, arguments))
            self.argument_names = tuple(each.name for each in self.arguments)
            declared = {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write}
            declared |= set(_WRITTEN_BY_COLLECTIVES.get(self.op_type, ()))
            self.writes = frozenset(declared) | frozenset(_UNDECLARED_WRITES.get(self.op_type, ()))
            self.written_positions = tuple(
                position for position, name in enumerate(self.argument_names) if name in self.writes
            )
            returned = sum(r.alias_info is not None and r.alias_info.is_write for r in schema.returns)
            if self.op_type in _WRITTEN_BY_COLLECTIVES:  # some return it, besides the work to wait for
                returned = sum("Tensor" in str(r.type) for r in schema.returns)
            # Some of what it writes is not among its results: `_foreach_add_` returns nothing.
            self.hides_writes = returned < len(self.written_positions)
            training = [each for each in ("training", "train") if each in self.argument_names]
            undeclared = self.op_type in _UNDECLARED_WRITES
            self.training_position = self.argument_names.index(training[0]) if undeclared and training else -1
            self.is_view = not declared and any(r.alias_info is not None for r in schema.returns)
            self.transparent = self.op_type in _TRANSPARENT or self.op_type.startswith("profiler::")
        # What a collective writes is there when it has been waited for, not when it returns.
        self.is_wait = self.op_type.startswith(_COLLECTIVES) and self.op_type.endswith(_WAIT)
        self.is_collective = self.op_type.startswith(_COLLECTIVES) and not self.is_wait
        self.is_communication = self.op_type.startswith(_COMMUNICATION)
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
        for position in self.written_positions:
            if position < len(args):
                _collect((args[position],), found)
        for name, value in kwargs.items():
            if name in self.writes:
                _collect((value,), found)
        return found

    def written_places(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, int]:
        """The places, among all tensor arguments, of those that the operator changes; by what a tensor is inside."""
        if not self.writes:
            return {}
        written = {each._cdata for each in self.written(args, kwargs)}
        tensors = [each._cdata for each in self.split(args, kwargs)[0]]
        return {each: place for place, each in reversed(list(enumerate(tensors))) if each in written}

    @staticmethod
    def writes_into(places: Mapping[int, int], outputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """For every output, the place of the tensor argument that it was written into, or -1; empty if none was.

        Args:
            places: as `written_places` has given them.
            outputs: of the call.
        """
        if not places:
            return ()
        found = tuple(places.get(each._cdata, -1) for each in outputs)
        return found if any(place >= 0 for place in found) else ()

    def attributes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Everything besides the tensors that is needed to call the operator again.

        Plain arguments appear under their name. A tensor argument that may be absent appears as None when
        it is, and as its value when a plain number was given for it; a list of tensors as its length, or as
        a list of None and True when it has gaps.
        """
        found: dict[str, Any] = {"overload": self.overload} if self.overload else {}
        if not self.argument_names:
            return found
        if self.is_communication:
            args, kwargs = (
                [readable_group(each) for each in args],
                {k: readable_group(v) for k, v in kwargs.items()},
            )
        given = dict(self._named(args, kwargs))
        for argument in self.arguments:
            value = given.get(argument.name)
            if argument.holds_tensors:
                if isinstance(value, (list, tuple)):
                    gaps = any(each is None for each in value)
                    found[argument.name] = (
                        [each is not None or None for each in value] if gaps else len(value)
                    )
                elif not isinstance(value, torch.Tensor):
                    found[argument.name] = _plain(value)
            elif argument.name in given:
                found[argument.name] = _plain(value)
        return with_ranks(self.op_type, found) if self.is_communication else found

    def attributes_of_all(self, values: Sequence[Any]) -> Mapping[str, Any]:
        """`attributes` of a call that gives one value per argument of the schema: defaults at its end are left out.

        Values come from below Python: dtypes, layouts and memory formats as numbers, devices as their names,
        undefined tensors as NotImplemented and objects with a life of their own as an Ellipsis. Calls that are alike,
        such as those of the layers of a model, share what they are given.
        """
        key: list[Any] = []
        if not _add_to_key(key, values):
            return self._attributes_of_all(values)
        known = self._attributes.get(tuple(key))
        if known is None:
            if len(self._attributes) >= _CALLS_KEPT:
                self._attributes.clear()
            known = self._attributes[tuple(key)] = self._attributes_of_all(values)
        return known

    def _attributes_of_all(self, values: Sequence[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"overload": self.overload} if self.overload else {}
        left_out: list[str] = []  # given so far, if a later positional argument is
        for argument, value in zip(self.arguments, values, strict=True):
            if argument.holds_tensors and isinstance(value, torch.Tensor):
                if not argument.kwarg_only:
                    left_out.clear()
                continue
            is_default = argument.has_default and _is_same(argument.default, value)
            if not is_default and not argument.kwarg_only:
                left_out.clear()
            value = _from_below(argument.kind, value)
            if argument.holds_tensors:
                if isinstance(value, list):
                    gaps = any(each is None for each in value)
                    found[argument.name] = (
                        [each is not None or None for each in value] if gaps else len(value)
                    )
                else:
                    found[argument.name] = _plain(value)
            elif not (is_default and argument.kwarg_only):
                found[argument.name] = _plain(value)
                if is_default:
                    left_out.append(argument.name)
        for name in left_out:
            del found[name]
        return with_ranks(self.op_type, found) if self.is_communication else found

    @staticmethod
    def device_of(values: Sequence[Any]) -> torch.device | None:
        """The device of the first tensor among values."""
        for value in values:
            if isinstance(value, torch.Tensor):
                return value.device
            if type(value) is list and value and isinstance(value[0], torch.Tensor):
                return value[0].device
        return None

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


# Equal values of these are the same value; of the same type, that is, which is therefore a part of keys.
_KEYS = frozenset((bool, int, str, type(None), type(Ellipsis), type(NotImplemented)))


def _add_to_key(key: list[Any], values: Iterable[Any]) -> bool:
    """Add what tells arguments from others, tensors apart, to a key; False for what cannot be told."""
    for value in values:
        kind = type(value)
        if kind is torch.Tensor:
            key.append(kind)
        elif kind in _KEYS:
            key += (kind, value)
        elif kind is float:
            key += (kind, value or str(value))  # zero has a sign
        elif kind is list:
            key += (kind, len(value))
            if not _add_to_key(key, value):
                return False
        elif isinstance(value, torch.Tensor):
            key.append(torch.Tensor)
        else:
            return False
    return True


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


_LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr, torch._mkldnn)  # type: ignore[attr-defined]
_MEMORY_FORMATS = (
    *(torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d),
)


def _from_below(schema_type: str, value: Any) -> Any:
    """An argument as Python would have passed it."""
    if isinstance(value, list):
        return [_from_below(schema_type.removesuffix("[]"), each) for each in value]
    kind = schema_type.removesuffix("?").removeprefix("Optional[").removesuffix("]")
    if value is None or value is NotImplemented:  # an undefined tensor
        return None
    if value is Ellipsis:
        return f"<{kind}>"
    if kind == "ScalarType":
        return dtype_by_number(value) or value
    if kind == "Layout":
        return _LAYOUTS[value] if value < len(_LAYOUTS) else value
    if kind == "MemoryFormat":
        return _MEMORY_FORMATS[value] if value < len(_MEMORY_FORMATS) else value
    if kind == "Device":
        return torch.device(value)
    return value


def _is_same(default: Any, value: Any) -> bool:
    if isinstance(default, torch.Tensor) or isinstance(value, torch.Tensor):
        return False
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return list(default) == list(value) and list(map(type, default)) == list(map(type, value))
    return type(default) is type(value) and bool(default == value)


# The order of PyTorch's own enumeration, which is only ever appended to.
_DTYPE_NAMES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64"),
    *("uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7"),
    *("int1", "int2", "int3", "int4", "int5", "int6", "int7", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)


def dtype_by_number(number: int) -> torch.dtype | None:
    """The dtype that PyTorch knows by a number below Python."""
    return getattr(torch, _DTYPE_NAMES[number], None) if 0 <= number < len(_DTYPE_NAMES) else None


def _plain(value: Any) -> Any:
    """An argument in a form that can be stored: numbers, text, lists of them, or its printed name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return str(_comparable(value))
