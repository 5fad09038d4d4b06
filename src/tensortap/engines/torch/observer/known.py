"""Names of tensors that are there before a run, for a program that repeats itself.

Parameters, buffers and the state of optimizers are named in Python once. The observer remembers by which places they
were found (known.h) and names them in later runs itself, as long as the program is built as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from tensortap.engines.torch.memory import asking_no_class, held_in, is_ordinary
from tensortap.engines.torch.outside import Outside
from tensortap.engines.torch.program import Program
from tensortap.records import Position

if TYPE_CHECKING:
    from tensortap.engines.torch.observer.decoder import Decoder

__all__ = ["KnownSources"]


class KnownSources:
    """What the runs of one decoder know of the program from the runs before."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._names: tuple[str, ...] | None = None
        self._paths: dict[int, str] = {}
        self.version = 0
        """Changes when the program is built differently from the run before."""

    @asking_no_class
    def name_all(
        self, program: Program, outside: Outside, inputs: Mapping[str, torch.Tensor], has_hooks: bool
    ) -> None:
        """Name the inputs of a step, and all that the modules of the program hold.

        Args:
            program: what is observed.
            outside: of this run.
            inputs: of the step.
            has_hooks: the parameters still have the hooks of the last run, or should have.
        """
        decoder, roots = self._decoder, list(program.modules.values())
        if self._names == tuple(program.modules):
            outside.name_inputs(inputs)
            if decoder.library.tt_name_known(decoder.handle, roots, has_hooks):
                outside.parameter_paths = self._paths
                return
        self.version += 1
        decoder.library.tt_forget_known(decoder.handle)
        self._names = None
        outside.name_inputs(inputs)
        outside.name_variables()
        self._paths = outside.parameter_paths
        decoder.announce_modules(program.module_paths())
        decoder.announce_parameters(program)

    @asking_no_class
    def remember(self, program: Program) -> None:
        """Have the observer remember what has just been named, unless it is bound to change."""
        if self._names is not None or program.has_lazy():
            return
        parameters, buffers = list(program.parameters()), list(program.buffers())
        if not all(_is_found_again(tensor) for _, tensor in (*parameters, *buffers)):
            return
        numbers = self._decoder.source_numbers
        known = self._decoder.library.tt_remember_known(
            self._decoder.handle,
            list(program.modules.values()),
            [(tensor, *numbers(path), *numbers(f"{path}/grad")) for path, tensor in parameters],
            [(tensor, *numbers(path)) for path, tensor in buffers],
        )
        self._names = tuple(program.modules) if known else None

    @asking_no_class
    def name_state(self, outside: Outside, scope: str, optimizer: Optimizer) -> None:
        """Name the state of an optimizer that begins to step, and what belongs to which parameter."""
        decoder, where = self._decoder, self._decoder.scope(scope, Position("optimizer"))
        if decoder.library.tt_name_state(decoder.handle, optimizer, where):
            outside.steps(scope, optimizer)
            return
        outside.name_optimizer_state(scope, optimizer)
        owner, numbers = decoder.owner, decoder.source_numbers
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
                (key, value, *_state_number(decoder, scope, path, key, value)) for key, value in state.items()
            ]
            states.append((parameter, owner(path), items))
        decoder.library.tt_remember_state(decoder.handle, optimizer, where, parameters, states)


def _state_number(decoder: Decoder, scope: str, path: str, key: Any, value: Any) -> tuple[bool, int, int]:
    if not isinstance(value, torch.Tensor):
        return False, -1, -1
    return True, *decoder.source_numbers(Program.state_name(scope, path, key))


def _is_found_again(tensor: torch.Tensor) -> bool:
    """Whether the observer can tell what a tensor is known by; of most wrappers that may change at any time."""
    return is_ordinary(tensor) or held_in(type(tensor)) is not None
