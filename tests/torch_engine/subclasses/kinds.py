"""Every kind of tensor that PyTorch ships or a user can make, each with something to do with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

READ, UNREAD, NO_RECORD = "read", "not looked at", "no record"


@dataclass(frozen=True)
class Kind:
    """One kind of tensor.

    Attributes:
        make: makes one of the given values, `[rows, 4]`.
        use: an op of the program on it.
        show: the result as plain values, to compare with.
        state: what must be known of such a tensor that is an input of the step.
        trains: whether it can be a parameter.
    """

    make: Callable[[torch.Tensor], Any]
    use: Callable[[Any], Any] = lambda x: x * 2
    show: Callable[[Any], Any] = lambda y: y.tolist()
    state: str = READ
    trains: bool = False


CALLS: list[str] = []
"""What the subclasses below were asked to do: watched they must be asked the same."""


class Wrapper(torch.Tensor):
    """A user's class around another tensor, without memory of its own."""

    elem: torch.Tensor

    @staticmethod
    def __new__(cls, elem: torch.Tensor, offset: int = 0, **policy: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.shape,
            strides=elem.stride(),
            storage_offset=offset,
            dtype=elem.dtype,
            device=elem.device,
            requires_grad=elem.requires_grad,
            **policy,
        )
        made.elem = elem
        made.offset = offset
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLS.append(str(func))
        offset = next((a.offset for a in args if isinstance(a, cls)), 0)
        args, kwargs = torch.utils._pytree.tree_map(
            lambda a: a.elem if isinstance(a, cls) else a, (args, kwargs or {})
        )
        result = func(*args, **kwargs)
        return torch.utils._pytree.tree_map(
            lambda r: cls(r, offset) if isinstance(r, torch.Tensor) else r, result
        )

    __torch_function__ = torch._C._disabled_torch_function_impl


class SizedByItself(Wrapper):
    """Works out even its sizes, device and layout by code of its own."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        inner = args[0].elem if isinstance(args[0], cls) else None
        if name.startswith("prim.device"):
            return inner.device
        if name.startswith("prim.layout"):
            return inner.layout
        if name.startswith(("aten.sym_size", "aten.size")):
            return inner.shape
        if name.startswith(("aten.sym_stride", "aten.stride")):
            return inner.stride()
        if name.startswith(("aten.sym_numel", "aten.numel")):
            return inner.numel()
        if name.startswith(("aten.dim", "aten.sym_storage_offset")):
            return inner.dim() if "dim" in name else 0
        if name.startswith("aten.is_contiguous"):
            return True
        CALLS.append(name)
        result = func(args[0].elem, *args[1:], **(kwargs or {}))
        return sized(result)


def sized(elem: torch.Tensor) -> torch.Tensor:
    policy = {"dispatch_sizes_strides_policy": "sizes", "dispatch_device": True, "dispatch_layout": True}
    made: torch.Tensor = SizedByItself(elem, **policy)
    return made


class Pair(torch.Tensor):
    """Two tensors of the same kind: neither stands for the whole."""

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)
        made.a, made.b = a, b
        return made

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLS.append(str(func))
        sides = [[getattr(a, side) if isinstance(a, cls) else a for a in args] for side in "ab"]
        return cls(*(func(*side, **(kwargs or {})) for side in sides))


class WithMemory(torch.Tensor):
    """A class with code of its own for every op, and elements of its own."""

    @staticmethod
    def __new__(cls, elem: torch.Tensor) -> Any:
        return torch.Tensor._make_subclass(cls, elem)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLS.append(str(func))
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


class Asked(torch.Tensor):
    """Code of its own for every question."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLS.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def _ragged(layout: torch.layout) -> Callable[[torch.Tensor], Any]:
    return lambda values: torch.nested.nested_tensor([values[:1], values[1:]], layout=layout)


def _mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (1,))


def _dtensor(values: torch.Tensor) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(values, _mesh(), [Shard(0)])


def _async_collective(values: torch.Tensor) -> Any:
    from torch.distributed._functional_collectives import all_reduce

    return all_reduce(values, "sum", dist.group.WORLD)


def _logging(values: torch.Tensor) -> Any:
    from torch.testing._internal.logging_tensor import LoggingTensor

    return LoggingTensor(values)


def _fake(values: torch.Tensor) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(values)


def _masked(values: torch.Tensor) -> Any:
    from torch.masked import masked_tensor

    return masked_tensor(values, values > 1)


def _freed(values: torch.Tensor) -> torch.Tensor:
    values = values.clone()
    values.untyped_storage().resize_(0)
    return values


def _shrunk(values: torch.Tensor) -> torch.Tensor:
    values = values.clone()
    values.untyped_storage().resize_(8)
    return values


def _mapped(values: torch.Tensor) -> torch.Tensor:
    file = tempfile.NamedTemporaryFile(delete=False)  # noqa: SIM115
    file.close()
    mapped = torch.from_file(file.name, shared=True, size=values.numel(), dtype=values.dtype)
    return mapped.copy_(values.reshape(-1)).view_as(values)


def _lazy(values: torch.Tensor) -> Any:
    return nn.parameter.UninitializedParameter()


def _nothing(x: Any) -> torch.Tensor:
    return torch.ones(2) * 2


KINDS: dict[str, Kind] = {
    "plain": Kind(lambda values: values.clone(), trains=True),
    "dtensor": Kind(_dtensor, show=lambda y: y.to_local().tolist(), trains=True),
    "nested_jagged": Kind(_ragged(torch.jagged), show=lambda y: y.values().tolist()),
    "nested_strided": Kind(_ragged(torch.strided), show=lambda y: [each.tolist() for each in y.unbind()]),
    "sparse_coo": Kind(lambda values: values.to_sparse(), show=lambda y: y.to_dense().tolist()),
    "sparse_csr": Kind(lambda values: values.to_sparse_csr(), show=lambda y: y.to_dense().tolist()),
    "sparse_csc": Kind(lambda values: values.to_sparse_csc(), show=lambda y: y.to_dense().tolist()),
    "sparse_bsr": Kind(
        lambda values: values.to_sparse_bsr((1, 2)), torch.clone, lambda y: y.to_dense().tolist()
    ),
    "sparse_bsc": Kind(
        lambda values: values.to_sparse_bsc((1, 2)), torch.clone, lambda y: y.to_dense().tolist()
    ),
    "mkldnn": Kind(lambda values: values.to_mkldnn(), torch.relu, lambda y: y.to_dense().tolist()),
    "quantised": Kind(
        lambda values: torch.quantize_per_tensor(values.nan_to_num(0.0), 0.1, 0, torch.quint8),
        torch.relu,
        lambda y: y.dequantize().tolist(),
    ),
    "masked": Kind(_masked, show=lambda y: y.get_data().tolist(), state=UNREAD),
    "fake": Kind(_fake, show=lambda y: list(y.shape), state=UNREAD),
    "functional": Kind(
        torch._to_functional_tensor, show=lambda y: torch._from_functional_tensor(y).tolist(), state=NO_RECORD
    ),
    "batched": Kind(lambda values: values.clone(), lambda x: torch.vmap(lambda row: nn.Tanh()(row) * 2)(x)),
    "grad_tracking": Kind(
        lambda values: values.clone(), lambda x: torch.func.grad(lambda t: nn.Tanh()(t).sum())(x)
    ),
    "meta": Kind(lambda values: values.to("meta"), show=lambda y: list(y.shape), state=UNREAD),
    "conjugated": Kind(lambda values: torch.complex(values, values).conj()),
    "negated": Kind(lambda values: torch._neg_view(values)),
    "expanded": Kind(lambda values: values[:1].expand(5, 4)),
    "strided": Kind(lambda values: values.t()[1:, ::2]),
    "empty": Kind(lambda values: values[:0]),
    "freed": Kind(_freed, _nothing, state=NO_RECORD),
    "shrunk": Kind(_shrunk, _nothing, state=NO_RECORD),
    "mapped": Kind(_mapped),
    "bfloat16": Kind(lambda values: values.bfloat16(), show=lambda y: y.float().tolist()),
    "wrapper": Kind(lambda values: Wrapper(values.clone()), show=lambda y: y.elem.tolist(), trains=True),
    "wrapper_offset": Kind(
        lambda values: Wrapper(values.clone(), 16), show=lambda y: y.elem.tolist(), trains=True
    ),
    "wrapper_sized": Kind(lambda values: sized(values.clone()), show=lambda y: y.elem.tolist()),
    "pair": Kind(
        lambda values: Pair(values.clone(), values + 1),
        show=lambda y: y.a.tolist() + y.b.tolist(),
        state=NO_RECORD,
    ),
    "with_memory": Kind(lambda values: WithMemory(values.clone()), show=lambda y: y.tolist()),
    "torch_function": Kind(lambda values: values.clone().as_subclass(Asked), trains=True),
    "logging": Kind(_logging, show=lambda y: y.elem.tolist(), trains=True),
    "async_collective": Kind(_async_collective, show=lambda y: y.tolist(), state=NO_RECORD),
    "lazy": Kind(_lazy, _nothing, state=NO_RECORD),
}
