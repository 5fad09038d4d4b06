"""What the user trains: modules, optimizers and other stateful objects, and their names in the graph."""

from __future__ import annotations

import functools
import inspect
import re
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from tensortap.engines.torch.shards import shard_of
from tensortap.engines.torch.values import specs_of
from tensortap.records import Node, Position, new_node

__all__ = ["Program", "clean_path", "module_holding", "variable_node"]

_UNUSABLE = re.compile(r"[^A-Za-z0-9_.\-/]")


@functools.lru_cache(maxsize=8192)
def clean_path(dotted: str) -> str:
    """A module path as a scope: `layers.0.attn` becomes `layers/0/attn`.

    Wrappers that only hold another module (torch.compile, DistributedDataParallel) add a level that the
    user did not write; compiled modules lose theirs so that names do not depend on being compiled.
    """
    parts = [part for part in dotted.split(".") if part and part != "_orig_mod"]
    return "/".join(_UNUSABLE.sub("_", part.replace("/", "_")) for part in parts)


def variable_node(
    name: str,
    tensor: torch.Tensor,
    op_type: str = "Variable",
    device: str = "",
    position: Position | None = None,
) -> Node:
    """The node that stands for a tensor which exists before the run; without a position, it is held by a module."""
    phase, module = position or Position("parameter", module_holding(name))
    shard = shard_of(tensor)
    outputs, attributes = specs_of((tensor,)), {} if shard is None else shard.attributes
    return new_node(name, op_type, (), (), outputs, device, attributes, (), None, False, phase, module, ())


def module_holding(path: str) -> str | None:
    """The path of the module that holds a parameter, buffer or operation.

    >>> module_holding("model/fc/weight"), module_holding("weight")
    ('model/fc', None)
    """
    return path.rpartition("/")[0] or None


class Program:
    """The stateful objects behind a step.

    Args:
        modules: modules by the name their path starts with.
        optimizers: optimizers by name (names matter for checkpoints only).
        extras: other objects with `state_dict` and `load_state_dict` (schedulers, gradient scalers).
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module] | None = None,
        optimizers: Mapping[str, Optimizer] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        for argument, given in (("modules", modules), ("optimizers", optimizers), ("extras", extras)):
            if given is not None and not isinstance(given, Mapping):
                raise TypeError(f"{argument}= maps names to objects, got {type(given).__name__}.")
        self.modules = dict(modules or {})
        self.optimizers = dict(optimizers or {})
        self.extras = dict(extras or {})
        _check("modules", self.modules, nn.Module)
        _check("optimizers", self.optimizers, Optimizer)
        for name, extra in self.extras.items():
            if not _is_stateful(extra):
                raise TypeError(f"extras[{name!r}] has no state_dict and load_state_dict: {extra!r}.")
        self._lists: dict[str, list[tuple[str, Any]]] | None = None
        self.name_of: Callable[[nn.Module], str | None] = lambda module: None
        """What the program itself calls a module that is none of these and called from outside all modules."""
        self._optimizer_scopes: weakref.WeakKeyDictionary[Optimizer, str] = weakref.WeakKeyDictionary()
        for optimizer in self.optimizers.values():
            self.optimizer_scope(optimizer)

    def module_paths(self) -> dict[int, str]:
        """Path of every module, by identity. A module in two places has the first of its paths."""
        paths: dict[int, str] = {}
        for key, root in self.modules.items():
            for name, module in self._modules_of(key, root):
                path = clean_path(f"{key}.{name}") or clean_path(key)
                paths.setdefault(id(module), path)
        return paths

    def path_of_unknown(self, module: nn.Module, parent: str) -> str:
        """A path for a module that is none of these; `parent` is the scope it is called in, empty or with a slash."""
        name = None if parent else self.name_of(module)
        return f"{parent}{clean_path(name or type(module).__name__)}"

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter once, with its path."""
        return self._listed("named_parameters", "_parameters")

    def lists_as_all_do(self) -> bool:
        """Whether the modules have the parameters that are found in them, and not others that they would tell of."""
        return all(_lists_as_all_do(root, "named_parameters") for root in self.modules.values())

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every buffer once, with its path."""
        return self._listed("named_buffers", "_buffers")

    def has_lazy(self) -> bool:
        """Whether a parameter or a buffer has no shape yet."""
        held = (("named_parameters", "_parameters"), ("named_buffers", "_buffers"))
        return any(is_lazy(each) for kind in held for *_, each in self._members(*kind))

    @contextmanager
    def held_still(self) -> Iterator[None]:
        """Nobody changes the program in the block, so what it holds is listed once and not for every question."""
        self._lists = {}
        try:
            yield
        finally:
            self._lists = None

    def _listed(self, listing: str, holder: str) -> Iterator[tuple[str, Any]]:
        lists = self._lists
        if lists is None:
            return self._unique(self._members(listing, holder))
        if listing not in lists:
            lists[listing] = list(self._unique(self._members(listing, holder)))
        return iter(lists[listing])

    def _members(self, listing: str, holder: str) -> Iterator[tuple[str, str, Any]]:
        """What modules hold, by the key of their root and the name there: as the method `listing` of a root tells it.

        As most roots inherit that method, what it does is done here, over modules that are listed once.
        """
        for key, root in self.modules.items():
            if not _lists_as_all_do(root, listing):
                for name, tensor in getattr(root, listing)():
                    yield key, name, tensor
                continue
            for prefix, module in self._modules_of(key, root):
                for name, tensor in getattr(module, holder).items():
                    if tensor is not None:
                        yield key, f"{prefix}.{name}" if prefix else name, tensor

    def _modules_of(self, key: str, root: nn.Module) -> Iterable[tuple[str, nn.Module]]:
        lists = self._lists
        listed = None if lists is None else lists.get(f"modules of {key}")
        if listed is None:
            listed = list(root.named_modules())
            if lists is not None:
                lists[f"modules of {key}"] = listed
        return listed

    def variables(self) -> Iterator[tuple[str, torch.Tensor, Position]]:
        """Parameters, buffers and the state of the known optimizers, with their names, and where they belong."""
        paths: dict[int, str] = {}
        for name, parameter in self.parameters():
            paths[id(parameter)] = name
            yield name, parameter, Position("parameter", module_holding(name))
        for name, buffer in self.buffers():
            yield name, buffer, Position("parameter", module_holding(name))
        for optimizer in self.optimizers.values():
            for path, name, tensor in self.optimizer_state(optimizer, paths):
                yield name, tensor, Position("optimizer", module_holding(path))

    def optimizer_scope(self, optimizer: Optimizer) -> str:
        """`optimizer/AdamW`, with a number when there are several of a class."""
        scope = self._optimizer_scopes.get(optimizer)
        if scope is None:
            taken = set(self._optimizer_scopes.values())
            base = scope = f"optimizer/{type(optimizer).__name__}"
            number = 0
            while scope in taken:
                number += 1
                scope = f"{base}_{number}"
            self._optimizer_scopes[optimizer] = scope
        return scope

    def optimizer_state(
        self, optimizer: Optimizer, parameter_paths: Mapping[int, str]
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        """(parameter path, name, tensor) for every state tensor, such as `exp_avg` of a weight."""
        scope = self.optimizer_scope(optimizer)
        number = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                path = parameter_paths.get(id(parameter)) or f"param_{number}"
                number += 1
                for key, tensor in optimizer.state.get(parameter, {}).items():
                    if isinstance(tensor, torch.Tensor):
                        yield path, self.state_name(scope, path, key), tensor

    @staticmethod
    def state_name(scope: str, path: str, key: Any) -> str:
        """What the state of an optimizer for a parameter is called, by its key."""
        return f"{scope}/{path}/{clean_path(str(key))}"

    def _unique(self, members: Iterable[tuple[str, str, Any]]) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        names: set[str] = set()
        for key, dotted, tensor in members:
            if id(tensor) in seen or is_lazy(tensor):  # a lazy one has no shape yet
                continue
            seen.add(id(tensor))
            name = clean_path(f"{key}.{dotted}")
            while name in names:  # two different paths may look alike once odd characters are gone
                name += "_"
            names.add(name)
            yield name, tensor


def _lists_as_all_do(module: nn.Module, listing: str) -> bool:
    """Whether a module lists what it holds by the methods that every module has."""
    methods = (listing, "_named_members", "named_modules")
    return all(
        getattr(getattr(module, each), "__func__", None) is getattr(nn.Module, each) for each in methods
    )


def discover(step: Callable[..., Any]) -> Program:
    """The modules, optimizers and schedulers that a step refers to, named as the step names them.

    Looks at the variables a function closes over, the globals it uses, and the attributes of the object
    when it is a bound method or a callable object.
    """
    found: dict[str, Any] = {}
    if isinstance(step, functools.partial):
        program = discover(step.func)
        found.update({**program.modules, **program.optimizers, **program.extras})
        found.update({f"arg_{i}": value for i, value in enumerate(step.args)})
        found.update(step.keywords)
    if isinstance(step, nn.Module):
        found["model"] = step
    owner = getattr(step, "__self__", None)
    function = inspect.unwrap(getattr(step, "__func__", step))
    if not isinstance(function, types.FunctionType):
        owner, function = function, vars(type(function)).get("__call__")
    if isinstance(function, types.FunctionType):
        found.update(_variables_of(function))
    if owner is not None and not isinstance(owner, (nn.Module, types.ModuleType)):
        found.update(getattr(owner, "__dict__", {}))
    modules: dict[str, nn.Module] = {}
    optimizers: dict[str, Optimizer] = {}
    extras: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, nn.Module):
            modules[name] = value
        elif isinstance(value, Optimizer):
            optimizers[name] = value
        elif _is_stateful(value):
            extras[name] = value
    return Program(modules, optimizers, extras)


def _variables_of(function: types.FunctionType) -> dict[str, Any]:
    """The variables from outside that a function refers to, as far as they have a value already."""
    found = {
        name: function.__globals__[name]
        for name in function.__code__.co_names
        if name in function.__globals__
    }
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # bound later, such as the session itself
            found[name] = cell.cell_contents
    return found


def _is_stateful(value: Any) -> bool:
    return not isinstance(value, type) and all(
        callable(getattr(value, each, None)) for each in ("state_dict", "load_state_dict")
    )


def _check(argument: str, values: Mapping[str, Any], kind: type) -> None:
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"{argument}= needs names as keys, got {name!r}.")
        if not isinstance(value, kind):
            raise TypeError(
                f"{argument}[{name!r}] must be a {kind.__module__}.{kind.__name__}, "
                f"got {type(value).__name__}."
            )
