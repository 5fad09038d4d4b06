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
from tensortap.engines.torch.unnoticed import unnoticed
from tensortap.records import Position

__all__ = ["KnownSources"]

_UNNAMED = (-1, -1)
_IN_OPTIMIZER = Position("optimizer")


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

    def forget(self) -> None:
        """The program is not known, or built differently."""
        self.version += 1
        self._library.tt_forget_known(self._observer.handle)
        self._names = None

    @asking_no_class
    def name_anew(self, program: Program, outside: Outside, inputs: Mapping[str, torch.Tensor]) -> None:
        """Name the same in a program of which nothing is known."""
        outside.name_inputs(inputs)
        if self._name_together(program, outside):
            self._names = tuple(program.modules)
        else:
            outside.name_variables()
        self._paths = outside.parameter_paths
        self._announce_modules(program)
        self._announce_parameters(program)

    def _name_together(self, program: Program, outside: Outside) -> bool:
        """Have the observer remember parameters and buffers, and name them; False if one is bound to change."""
        if program.has_lazy():
            return False
        parameters, buffers = list(program.parameters()), list(program.buffers())
        if not all(_is_found_again(tensor) for _, tensor in (*parameters, *buffers)):
            return False
        numbered, node, rows = self._sources.numbered, outside.node, []
        for path, parameter in parameters:
            outside.parameter_paths[id(parameter)] = path
            gradient = outside.gradient_node(path, parameter)
            numbers = _UNNAMED if gradient is None else numbered(gradient)
            rows.append((parameter, *numbered(node(path, parameter)), *numbers))
        handle, roots = self._observer.handle, list(program.modules.values())
        held = [(buffer, *numbered(node(path, buffer))) for path, buffer in buffers]
        return bool(
            self._library.tt_remember_known(handle, roots, rows, held)
            and self._library.tt_name_known(handle, roots, True)
        )

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
    def name_state(self, outside: Outside, scope: str, optimizer: Optimizer) -> None:
        """Name the state of an optimizer that steps, and what belongs to which parameter."""
        where = self._numbers.scope(scope, _IN_OPTIMIZER)
        if self._name_known_state(optimizer, where) or (
            self._remember_state(outside, scope, where, optimizer)
            and self._name_known_state(optimizer, where)
        ):
            outside.steps(scope, optimizer)
        else:
            outside.name_optimizer_state(scope, optimizer)
        self._library.tt_expect_state(self._observer.handle, optimizer.state)

    def _name_known_state(self, optimizer: Optimizer, where: int) -> bool:
        return bool(self._library.tt_name_state(self._observer.handle, optimizer, where))

    def _remember_state(self, outside: Outside, scope: str, where: int, optimizer: Optimizer) -> bool:
        try:
            with unnoticed():
                rows = self._rows_of(outside, scope, optimizer)
        except Exception:  # whoever asks one after the other has the same trouble, and tells of it
            return False
        if rows is None:
            return False
        return bool(self._library.tt_remember_state(self._observer.handle, optimizer, where, *rows))

    def _rows_of(
        self, outside: Outside, scope: str, optimizer: Optimizer
    ) -> tuple[list[Any], list[Any]] | None:
        """Parameters and state of an optimizer, with their numbers; None if it is not as those of PyTorch are."""
        owner, numbered = self._numbers.owner, self._sources.numbered
        parameters: list[tuple[torch.Tensor, int, int, int]] = []
        paths: dict[int, str] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                path = outside.parameter_paths.get(id(parameter))
                numbers = _UNNAMED
                if not _is_found_again(parameter):
                    return None
                if path is None:
                    path = f"param_{len(parameters)}"
                    numbers = numbered(outside.node(f"{scope}/{path}", parameter, position=_IN_OPTIMIZER))
                paths[id(parameter)] = path
                parameters.append((parameter, owner(path), *numbers))
        states = []
        for parameter, state in optimizer.state.items():
            path = paths.get(id(parameter))
            if path is None or not isinstance(state, dict):
                return None
            items: list[tuple[Any, Any, bool, int, int]] = []
            for key, value in state.items():
                if not isinstance(value, torch.Tensor):
                    items.append((key, value, False, *_UNNAMED))
                    continue
                if not _is_found_again(value):
                    return None
                name, position = (
                    Program.state_name(scope, path, key),
                    Position("optimizer", module_holding(path)),
                )
                items.append((key, value, True, *numbered(outside.node(name, value, position=position))))
            states.append((parameter, owner(path), items))
        return parameters, states


def _is_found_again(tensor: torch.Tensor) -> bool:
    """Whether the observer can tell what a tensor is known by; of most wrappers that may change at any time."""
    return is_ordinary(tensor) or held_in(type(tensor)) is not None
