"""Names for tensors that no op of the run has made.

Inputs of the step, parameters, buffers and optimizer state are known by name before they are used. Anything
else from outside (a literal, a tensor the step closes over) is a constant, named after the op that uses it
first. A source becomes a node of the run, and is tapped, when an op uses it for the first time: its value is
still the one it came with then.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch import devices
from tensortap.engines.torch.interceptor import Observation
from tensortap.engines.torch.memory import asking_no_class, in_place_of
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.places import DTYPE, OFFSET, SHAPE, STRIDES, Origin, Place, Places
from tensortap.engines.torch.program import Program, module_holding, variable_node
from tensortap.engines.torch.tracing import is_being_traced
from tensortap.engines.torch.unnoticed import unnoticed
from tensortap.engines.torch.values import spec_of
from tensortap.records import Node, Position

__all__ = ["Outside", "constant_position", "hidden_view_node"]


class Outside:
    """The tensors from outside, in one run.

    Args:
        on_use: called as (tensor name, node, tensor) when a source is used for the first time.
    """

    def __init__(
        self,
        program: Program,
        names: RunNames,
        places: Places,
        observation: Observation,
        on_use: Callable[[str, Node, torch.Tensor], None],
    ) -> None:
        self._program = program
        self._names = names
        self._places = places
        self._observation = observation
        self._on_use = on_use
        self._stepping: tuple[str, Optimizer, int] | None = None
        self._state_named = 0
        self.parameter_paths: dict[int, str] = {}
        """Path of each parameter, by identity."""
        self.owners: dict[str, str] = {}
        """Within an optimizer: the parameter that a tensor has to do with, by tensor name."""

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
            if parameter.grad is not None:
                self._add(
                    f"{path}/grad", parameter.grad, position=Position("parameter", module_holding(path))
                )
        for path, buffer in self._program.buffers():
            self._add(path, buffer)

    @asking_no_class
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
            if isinstance(value, torch.Tensor) and self._places.find(value) is None:
                parameters = parameters or _parameters_of(module.forward)
                known = position < len(parameters)
                label = parameters[position] if known else f"input_{position}"
                # Counted like an op: the module may be called again with another tensor.
                entry = self._names.next(f"{path}/", label)
                self._add(entry.name, value, "Placeholder", Position("input", path))

    @asking_no_class
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
                for tensor in (parameter, parameter.grad):
                    origin = None if tensor is None else self._places.find(tensor)
                    if origin is not None:
                        self.owners[origin.name] = path
        for path, name, tensor in self._program.optimizer_state(optimizer, self.parameter_paths):
            origin = self._places.find(tensor)
            if origin is None:
                position = Position("optimizer", module_holding(path))
                self.owners[self._add(name, tensor, position=position)] = path
            else:
                self.owners[origin.name] = path

    def steps(self, scope: str, optimizer: Optimizer) -> None:
        """Take note of the optimizer that steps: the state it makes while it does will have names, too."""
        self._stepping = (scope, optimizer, len(optimizer.state))

    def find_new_state(self, place: Place) -> Origin | None:
        """Look again for state that the running optimizer has made in this very step."""
        return self._places.origins.get(place) if self.has_new_state() else None

    def has_new_state(self) -> bool:
        """Name the state that the running optimizer has made since it began to step; False if there is none."""
        if self._stepping is None:
            return False
        scope, optimizer, known = self._stepping
        if len(optimizer.state) == known:
            return False
        self.name_optimizer_state(scope, optimizer)
        return True

    def known_name(self, tensor: torch.Tensor) -> str | None:
        """The name of a tensor that is about to be used; None if it comes from nowhere."""
        place = self._places.place_of(tensor)
        origin = self._places.origins.get(place) or self._find_state_of_all(place)
        if origin is None:
            return None
        self.use(origin, tensor)
        return origin.name

    def _find_state_of_all(self, place: Place) -> Origin | None:
        """Look among the state of every known optimizer: a compiled one does not announce that it steps."""
        size = sum(len(optimizer.state) for optimizer in self._program.optimizers.values())
        if size == self._state_named:
            return None
        self._state_named = size
        for optimizer in self._program.optimizers.values():
            self.name_optimizer_state(self._program.optimizer_scope(optimizer), optimizer)
        return self._places.origins.get(place)

    def use(self, origin: Origin, tensor: torch.Tensor) -> None:
        """Make a source that is used for the first time a node of the run."""
        node, origin.source = origin.source, None
        if node is not None:
            self._on_use(origin.name, node, tensor)

    def name_unseen(self, consumer: NameEntry, tensor: torch.Tensor, place: Place) -> str:
        """Name a tensor that came from nowhere, after the op that uses it first."""
        found = self._places.origins.get(place)
        if found is not None:  # the same op takes it twice
            return found.name
        seen = in_place_of(tensor)
        if seen is not None:
            tensor = seen
        memory = self._places.memory_at(place)
        root = None if memory is None else self._places.origins.get(memory.root)
        if memory is None or root is None or memory.root[DTYPE] != place[DTYPE] or place[STRIDES] is None:
            entry = self._names.next(consumer.name + "/", "const")
            name = self._add(entry.name, tensor, "Const", constant_position(consumer.position))
            self.use(self._places.origins[place], tensor)
            return name
        # A view, made where nobody could see it, of memory that does have a name.
        if root.source is not None:
            self.use(root, tensor.as_strided(memory.root[SHAPE], memory.root[STRIDES], memory.root[OFFSET]))
        entry = self._names.next(consumer.name + "/", "as_strided")
        node = hidden_view_node(entry.name, root.name, memory.writer, tensor, consumer.position)
        self._places.assign(tensor, place, entry.tensor(0))
        self._on_use(entry.tensor(0), node, tensor)
        return entry.tensor(0)

    def _add(
        self, name: str, tensor: torch.Tensor, op_type: str = "Variable", position: Position | None = None
    ) -> str:
        node = self._names.source(name, spec_of(tensor))
        if node is None:
            node = variable_node(name, tensor, op_type, devices.name_of(tensor.device), position)
            self._names.keep_source(node)
        self._places.assign(tensor, self._places.place_of(tensor), node.tensor(0), node)
        return node.tensor(0)


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
