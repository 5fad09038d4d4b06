"""Names of tensors that are there before a run, for a program that repeats itself.

Parameters, buffers and the state of optimizers are named in Python once. The observer remembers by which places they
were found (known.h) and names them in later runs itself, as long as the program is built as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from tensortap.engines.torch.memory import asking_no_class, held_in, is_ordinary
from tensortap.engines.torch.observer.library import NativeObserver
from tensortap.engines.torch.observer.nodes import Nodes
from tensortap.engines.torch.observer.numbers import Numbers
from tensortap.engines.torch.observer.sources import NativeSources
from tensortap.engines.torch.outside import Outside
from tensortap.engines.torch.program import Program, module_holding
from tensortap.records import Position

__all__ = ["KnownSources"]


class KnownSources:
    """What the runs of one observer know of the program from the runs before.

    Args:
        observer: is told.
        numbers: what its numbers mean.
        nodes: that it knows.
        sources: tensors from outside, as it knows them.
    """

    def __init__(
        self, observer: NativeObserver, numbers: Numbers, nodes: Nodes, sources: NativeSources
    ) -> None:
        self._library, self._observer = observer.library, observer
        self._numbers = numbers
        self._nodes = nodes
        self._sources = sources
        self._names: tuple[str, ...] | None = None
        self._paths: dict[int, str] = {}
        self.version = 0
        """Changes when the program is built differently from the run before."""

    @asking_no_class
    def name_again(
        self, program: Program, outside: Outside, inputs: Mapping[str, torch.Tensor], has_hooks: bool
    ) -> bool:
        """Name the inputs of a step, and what the modules of a program hold; False if it is not built as it was.

        Args:
            program: what is observed.
            outside: of this run.
            inputs: of the step.
            has_hooks: the parameters still have the hooks of the last run, or should have.
        """
        if self._names != tuple(program.modules):
            return False
        outside.name_inputs(inputs)
        roots = list(program.modules.values())
        if not self._library.tt_name_known(self._observer.handle, roots, has_hooks):
            return False
        outside.parameter_paths = self._paths
        return True

    @asking_no_class
    def name_anew(self, program: Program, outside: Outside, inputs: Mapping[str, torch.Tensor]) -> None:
        """The same for a program that is not known, or built differently."""
        self.version += 1
        self._library.tt_forget_known(self._observer.handle)
        self._names = None
        outside.name_inputs(inputs)
        outside.name_variables()
        self._paths = outside.parameter_paths
        self._announce_modules(program)
        self._announce_parameters(program)

    def _announce_modules(self, program: Program) -> None:
        """Tell the observer what the modules of the program are called."""
        announce, handle, scope = self._library.tt_add_module, self._observer.handle, self._numbers.scope
        for module, path in program.module_paths().items():
            announce(handle, module, scope(path + "/", Position("forward", path)))

    def _announce_parameters(self, program: Program) -> None:
        """Tell the observer what the gradients of the parameters are called."""
        announce, handle, numbers = self._library.tt_add_parameter, self._observer.handle, self._numbers
        paths = self._nodes.parameter_paths
        del paths[:]
        for path, parameter in program.parameters():
            if parameter.requires_grad and parameter.is_leaf:
                parent, _, leaf = f"gradients/{path}".rpartition("/")
                position = Position("backward", module_holding(path))
                scope, label = numbers.scope(parent + "/", position), numbers.label(leaf)
                inner = numbers.scope(f"gradients/{path}/", position)
                announce(handle, parameter._cdata, len(paths), scope, label, inner)
                paths.append(path)

    @asking_no_class
    def remember(self, program: Program) -> None:
        """Have the observer remember what has just been named, unless it is bound to change."""
        if self._names is not None or program.has_lazy():
            return
        parameters, buffers = list(program.parameters()), list(program.buffers())
        if not all(_is_found_again(tensor) for _, tensor in (*parameters, *buffers)):
            return
        numbers = self._sources.numbers_of
        known = self._library.tt_remember_known(
            self._observer.handle,
            list(program.modules.values()),
            [(tensor, *numbers(path), *numbers(f"{path}/grad")) for path, tensor in parameters],
            [(tensor, *numbers(path)) for path, tensor in buffers],
        )
        self._names = tuple(program.modules) if known else None

    @asking_no_class
    def name_state(self, outside: Outside, scope: str, optimizer: Optimizer) -> None:
        """Name the state of an optimizer that begins to step, and what belongs to which parameter."""
        where = self._numbers.scope(scope, Position("optimizer"))
        if self._library.tt_name_state(self._observer.handle, optimizer, where):
            outside.steps(scope, optimizer)
            return
        outside.name_optimizer_state(scope, optimizer)
        owner, numbers = self._numbers.owner, self._sources.numbers_of
        parameters: list[tuple[torch.Tensor, int, int, int]] = []
        paths: dict[int, str] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                path = outside.parameter_paths.get(id(parameter))
                named = (-1, -1)
                if path is None:
                    path = f"param_{len(parameters)}"
                    named = numbers(f"{scope}/{path}")
                if not _is_found_again(parameter):
                    return
                paths[id(parameter)] = path
                parameters.append((parameter, owner(path), *named))
        states = []
        for parameter, state in optimizer.state.items():
            path = paths.get(id(parameter))
            if path is None or not isinstance(state, dict):
                return  # not as optimizers of PyTorch are: it is asked in every step
            if not all(_is_found_again(each) for each in state.values() if isinstance(each, torch.Tensor)):
                return
            items = [
                (key, value, *self._state_number(scope, path, key, value)) for key, value in state.items()
            ]
            states.append((parameter, owner(path), items))
        self._library.tt_remember_state(self._observer.handle, optimizer, where, parameters, states)

    def _state_number(self, scope: str, path: str, key: Any, value: Any) -> tuple[bool, int, int]:
        if not isinstance(value, torch.Tensor):
            return False, -1, -1
        return True, *self._sources.numbers_of(Program.state_name(scope, path, key))


def _is_found_again(tensor: torch.Tensor) -> bool:
    """Whether the observer can tell what a tensor is known by; of most wrappers that may change at any time."""
    return is_ordinary(tensor) or held_in(type(tensor)) is not None
