"""Which models a program has, and what it calls them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from tensortap.engines.torch import lines
from tensortap.engines.torch.program import Program, clean_path
from tensortap.engines.torch.variables import variables_of

__all__ = ["Models"]


class Models:
    """The models of the program, by the names the program has for them; they live as long as it wants."""

    def __init__(self) -> None:
        self.program = Program()
        self.program.name_of = self._name_of
        self._names: weakref.WeakKeyDictionary[nn.Module, str | None] = weakref.WeakKeyDictionary()
        self._models: dict[str, weakref.ref[nn.Module]] = {}
        self._parts: dict[str, list[tuple[str, weakref.ref[nn.Module]]]] = {}
        """Of each model, by their names in it, outer ones first."""
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def refresh(self) -> None:
        """Forget models that the program has let go of, but not the parts with parameters that are still there.

        A list of models may have been made for an optimizer only; its parts keep their names.
        """
        modules = self.program.modules
        modules.clear()
        for name, reference in list(self._models.items()):
            module = reference()
            if module is not None:
                modules[name] = module
                continue
            del self._models[name]
            inside: set[int] = set()
            for path, part in self._parts.pop(name):
                left = part()
                if left is not None and id(left) not in inside and _has_parameters(left):
                    modules[f"{name}.{path}"] = left
                    inside.update(self._remember(f"{name}.{path}", left))

    def learn_of(self, optimizer: Optimizer, frame: FrameType) -> bool:
        """Find the models an optimizer is for among the variables of its makers; whether there are new ones."""
        owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        found = {
            name: module
            for name, module in _modules_around(frame)
            if any(id(parameter) in owned for parameter in module.parameters())
        }
        if len(found) > 1:
            inner = {id(each) for module in found.values() for each in list(module.modules())[1:]}
            found = {name: module for name, module in found.items() if id(module) not in inner}
        return sum(self._add(name, module) for name, module in found.items()) > 0

    def learn(self, module: nn.Module, frame: FrameType) -> bool:
        """Take a model that is called to the known ones, unless it is a part or a wrapper of one of them."""
        if module in self._known or _is_being_made(frame):
            return False
        named = next((name for name, each in _modules_around(frame) if each is module), None)
        return self._add(named or type(module).__name__.lower(), module)

    def knows(self, module: nn.Module) -> bool:
        """Whether there is nothing to be learned of a model, now and later."""
        return module in self._known

    def _name_of(self, module: nn.Module) -> str | None:
        """The variable that holds a module without parameters, such as a loss."""
        if module not in self._names:
            named = (name for name, each in _modules_around(sys._getframe(1)) if each is module)
            self._names[module] = next(named, None)
        return self._names[module]

    def _add(self, name: str, module: nn.Module) -> bool:
        if module in self._known:
            return False
        self._known.add(module)
        self.refresh()
        known = {id(each) for model in self.program.modules.values() for each in model.parameters()}
        if all(id(each) in known for each in module.parameters()):
            return False
        self._known.update(module.modules())
        parts = set(map(id, module.modules()))
        for part, reference in list(self._models.items()):
            if id(reference()) in parts:  # it has turned out to be part of a larger one
                del self._models[part], self._parts[part]
                self.program.modules.pop(part, None)
        taken = {each.partition(".")[0] for each in self._models}  # also by parts of a model that is gone
        name = base = clean_path(name) or "model"
        number = 0
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        self._remember(name, module)
        self.program.modules[name] = module
        return True

    def _remember(self, name: str, module: nn.Module) -> set[int]:
        """Keep a model without keeping it alive; the identities of it and its parts."""
        self._models[name] = weakref.ref(module)
        named = list(module.named_modules())
        self._parts[name] = [(path, weakref.ref(part)) for path, part in named[1:]]
        return {id(part) for _, part in named}


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _is_being_made(frame: FrameType | None) -> bool:
    """Whether a module is called by the constructor of another, which will be its parent under its proper name."""
    frame = lines.first_user_frame(frame)
    while frame is not None:
        code = frame.f_code
        makes = code.co_name == "__init__" and code.co_argcount > 0
        if makes and isinstance(variables_of(frame).get(code.co_varnames[0]), nn.Module):
            return True
        frame = lines.first_user_frame(frame.f_back)
    return False


def _modules_around(frame: FrameType | None) -> Iterator[tuple[str, nn.Module]]:
    """Modules in the variables of the program's functions that are being executed, the outermost function first."""
    frames = []
    frame = lines.first_user_frame(frame)
    while frame is not None:
        frames.append(frame)
        frame = lines.first_user_frame(frame.f_back)
    shared: dict[int, dict[str, nn.Module]] = {}  # by namespace: most functions of a program share a few
    for each in reversed(frames):
        space = each.f_globals
        modules = shared.get(id(space))
        if modules is None:
            modules = shared[id(space)] = _modules_in(space)
        variables = variables_of(each)
        owner = variables.get("self", space.get("self"))
        if owner is not None and not isinstance(owner, nn.Module):
            variables.update(getattr(owner, "__dict__", {}))
        for name, value in modules.items():
            if name not in variables:
                yield name.lstrip("_"), value
        for name, value in _modules_in(variables).items():
            yield name.lstrip("_"), value


def _modules_in(names: Mapping[str, Any]) -> dict[str, nn.Module]:
    return {
        name: value
        for name, value in list(names.items())
        if issubclass(type(value), nn.Module) and name != "self" and not name.startswith("__")
    }
