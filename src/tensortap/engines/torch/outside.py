"""Names for tensors that no op of the run has made.

Inputs of the step, parameters, buffers and optimizer state are known by name before they are used. Anything
else from outside (a literal, a tensor the step closes over) is a constant, named after the op that uses it
first. A source becomes a node of the run, and is tapped, when an op uses it for the first time: its value is
still the one it came with then.

Each interceptor keeps names and places in its own way; `SourceNames` and `SourcePlaces` say what is needed of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch import devices
from tensortap.engines.torch.interceptor import Observation
from tensortap.engines.torch.memory import asking_no_class
from tensortap.engines.torch.program import Program, module_holding, variable_node
from tensortap.engines.torch.tracing import is_being_traced
from tensortap.engines.torch.unnoticed import unnoticed
from tensortap.engines.torch.values import spec_of
from tensortap.records import Node, Position, TensorSpec

__all__ = ["Outside", "SourceNames", "SourcePlaces", "constant_position", "hidden_view_node"]


class SourceNames(Protocol):
    """The names of a session."""

    def next(self, scope: str, label: str) -> NameEntry:
        """The entry of the next thing of this run that is called `label` in `scope`, empty or ending in a slash."""

    def source(self, name: str, spec: TensorSpec) -> Node | None:
        """A node that was kept for a tensor from outside of this name and kind."""

    def keep_source(self, node: Node) -> Node:
        """Keep the node of a tensor from outside, and its name from being given to an op; what stands for it now."""


class SourcePlaces(Protocol):
    """The values of a run that have a name, by where they are."""

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The name of a tensor's value, if it has one."""

    def add_source(self, tensor: torch.Tensor, node: Node) -> bool:
        """Give a tensor its name, and have it become this node when it is used first; False if that cannot be."""

    def own(self, tensor: torch.Tensor, path: str) -> bool:
        """Note the parameter that a tensor has to do with within an optimizer; False if it has no name yet."""

    def expect(self, node: Node) -> None:
        """Be told of a tensor that will perhaps be there in a later run."""


class Outside:
    """The tensors from outside, in one run.

    Args:
        program: has them.
        names: gives them their names.
        places: remembers where they are.
        observation: counts what fails.
    """

    def __init__(
        self, program: Program, names: SourceNames, places: SourcePlaces, observation: Observation
    ) -> None:
        self._program = program
        self._names = names
        self._places = places
        self._observation = observation
        self._stepping: tuple[str, Optimizer, int] | None = None
        self._device_names: dict[torch.device, str] = {}  # for one run: the rank may come to be known later
        self.parameter_paths: dict[int, str] = {}
        """Path of each parameter, by identity."""

    @asking_no_class
    def name_what_is_known(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Step inputs, parameters with the gradients they already have, and buffers."""
        self.name_inputs(inputs)
        self.name_variables()

    def name_inputs(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """The inputs of the step."""
        for name, tensor in inputs.items():
            self._add(name, tensor, "Placeholder", Position("input"))

    def name_variables(self) -> None:
        """Parameters with the gradients they already have, and buffers."""
        for path, parameter in self._program.parameters():
            self.parameter_paths[id(parameter)] = path
            self._add(path, parameter)
            gradient = self.gradient_node(path, parameter)
            if parameter.grad is not None and gradient is not None:
                self._add_node(parameter.grad, gradient)
            elif gradient is not None:
                self._places.expect(gradient)
        for path, buffer in self._program.buffers():
            self._add(path, buffer)

    def name_module_inputs(self, path: str, module: nn.Module, args: Any) -> None:
        """Call tensors that a top-level module is given from outside after the parameters of `forward`."""
        if is_being_traced():
            return
        try:
            with unnoticed():
                self._name_module_inputs(path, module, args)
        except Exception:
            self._observation.fault(f"naming the inputs of module {path!r}")

    def _name_module_inputs(self, path: str, module: nn.Module, args: Any) -> None:
        parameters: tuple[str, ...] = ()
        for position, value in enumerate(args):
            if isinstance(value, torch.Tensor) and self._places.name_of(value) is None:
                parameters = parameters or _parameters_of(module.forward)
                known = position < len(parameters)
                label = parameters[position] if known else f"input_{position}"
                # Counted like an op: the module may be called again with another tensor.
                entry = self._names.next(f"{path}/", label)
                self._add(entry.name, value, "Placeholder", Position("input", path))

    def name_optimizer_state(self, scope: str, optimizer: Optimizer) -> None:
        """The state tensors of an optimizer that starts to step, and what belongs to which parameter."""
        try:
            with unnoticed():
                self._name_optimizer_state(scope, optimizer)
        except Exception:
            self._observation.fault(f"naming the state of {scope!r}")

    def _name_optimizer_state(self, scope: str, optimizer: Optimizer) -> None:
        self.steps(scope, optimizer)
        number = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                path = self.parameter_paths.get(id(parameter))
                if path is None:
                    path = f"param_{number}"
                    self._add(f"{scope}/{path}", parameter, position=Position("optimizer"))
                number += 1
                self._places.own(parameter, path)
                if parameter.grad is not None:
                    self._places.own(parameter.grad, path)
        for path, name, tensor in self._program.optimizer_state(optimizer, self.parameter_paths):
            if not self._places.own(tensor, path):
                self._add(name, tensor, position=Position("optimizer", module_holding(path)))
                self._places.own(tensor, path)

    def steps(self, scope: str, optimizer: Optimizer) -> None:
        """Take note of the optimizer that steps: the state it makes while it does will have names, too."""
        self._stepping = (scope, optimizer, len(optimizer.state))

    def has_new_state(self) -> bool:
        """Name the state that the running optimizer has made since it began to step; False if there is none."""
        grown = self.grown()
        if grown is None:
            return False
        self.name_optimizer_state(*grown)
        return True

    def grown(self) -> tuple[str, Optimizer] | None:
        """Scope and optimizer, if one is stepping and has made state since this was noted."""
        if self._stepping is None:
            return None
        scope, optimizer, known = self._stepping
        return None if len(optimizer.state) == known else (scope, optimizer)

    def _add(
        self, name: str, tensor: torch.Tensor, op_type: str = "Variable", position: Position | None = None
    ) -> None:
        self._add_node(tensor, self.node(name, tensor, op_type, position))

    def _add_node(self, tensor: torch.Tensor, node: Node) -> None:
        if not self._places.add_source(tensor, node):
            self._observation.fault(f"naming a tensor ({node.tensor(0)})")

    def gradient_node(self, path: str, parameter: torch.Tensor) -> Node | None:
        """The node of the gradient that a parameter has, or may come to have."""
        gradient = parameter.grad
        if gradient is None and not parameter.requires_grad:
            return None
        position = Position("parameter", module_holding(path))
        return self.node(f"{path}/grad", parameter if gradient is None else gradient, position=position)

    def node(
        self, name: str, tensor: torch.Tensor, op_type: str = "Variable", position: Position | None = None
    ) -> Node:
        """The node of a tensor from outside that is called so."""
        node = self._names.source(name, spec_of(tensor))
        if node is None:
            device = tensor.device
            if device not in self._device_names:
                self._device_names[device] = devices.name_of(device)
            node = variable_node(name, tensor, op_type, self._device_names[device], position)
            node = self._names.keep_source(node)
        return node


def _parameters_of(forward: Any) -> tuple[str, ...]:
    function = getattr(forward, "__func__", None)
    if function is None:  # no method: something that was put in its place
        return tuple(inspect.signature(forward).parameters)
    return _parameters_of_method(function)


@functools.lru_cache(maxsize=256)
def _parameters_of_method(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)[1:]


def constant_position(consumer: Position | None) -> Position:
    """Where a tensor from nowhere belongs: to the optimizer or the gradient that takes it, else to the inputs."""
    phase, module = consumer or Position("forward")
    return Position("input" if phase == "forward" else phase, module)


def hidden_view_node(
    name: str, root: str, writer: str | None, tensor: torch.Tensor, consumer: Position | None
) -> Node:
    """The node of a view that no op of the run has made; it stands where the op does that takes it."""
    phase, module = consumer or ("", None)
    return Node(
        name,
        "aten::as_strided",
        (root,),
        (writer,) if writer is not None else (),
        (spec_of(tensor),),
        devices.name_of(tensor.device),
        {
            "size": list(tensor.shape),
            "stride": list(tensor.stride()),
            "storage_offset": tensor.storage_offset(),
        },
        is_view=True,
        phase=phase,
        module=module,
    )
