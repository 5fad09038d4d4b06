"""The nodes of the ops that the recorder sees, built when something about them has changed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch import devices
from tensortap.engines.torch.calls import Call
from tensortap.engines.torch.interceptor import Observation
from tensortap.engines.torch.lines import callers_of, capture_stack, ran_compiled
from tensortap.engines.torch.places import DTYPE, SHAPE, Place
from tensortap.engines.torch.program import module_holding
from tensortap.engines.torch.values import dtype_name, plain_shape, specs_of
from tensortap.records import Node, TensorSpec, new_node
from tensortap.seam.graph import merged_attributes

__all__ = ["CallNodes", "gradient_node"]


class CallNodes:
    """Builds the nodes of one run.

    Args:
        observation: of the run.
        stays_compiled: compiled functions are not executed eagerly in it.
    """

    def __init__(self, observation: Observation, stays_compiled: bool) -> None:
        self._observation = observation
        self._stays_compiled = stays_compiled
        self.built = 0
        """How many were not known from earlier runs."""

    def of(self, call: Call, outputs: list[torch.Tensor], places: list[Place]) -> Node:
        """The node of a finished call: the one of an earlier run when nothing about it has changed."""
        entry, frame = call.entry, call.frame
        code, instruction = (None, -1) if frame is None else (frame.f_code, frame.f_lasti)
        callers = callers_of(frame)
        node = entry.node
        same_line = (
            node is not None
            and entry.instruction == instruction
            and entry.code is code
            and entry.callers == callers
        )
        shapes = [(place[SHAPE], place[DTYPE]) for place in places]
        if (
            node is not None
            and same_line
            and entry.func is call.op.func
            and entry.inputs == call.inputs
            and entry.shapes == shapes
            and node.control_inputs == call.control
        ):
            if entry.others_vary or entry.others == call.others:
                return node
            # An argument that changes a second time (a learning rate) changes in every run: from now on the
            # node says so, instead of being made anew for each value.
            if entry.others_changed:
                entry.others_vary = True
                attributes = merged_attributes(node.attributes, call.op.attributes(call.args, call.kwargs))
                entry.node = replace(node, attributes=attributes)
                return entry.node
            entry.others_changed = True
        specs = tuple(TensorSpec(dtype_name(dtype), plain_shape(shape)) for shape, dtype in shapes)
        device = outputs[0].device if outputs else call.tensors[0].device if call.tensors else None
        entry.node = self._build(call, specs, device, node if same_line else None, outputs)
        entry.func, entry.code, entry.instruction, entry.callers = call.op.func, code, instruction, callers
        entry.inputs, entry.shapes, entry.others = call.inputs, shapes, call.others
        return entry.node

    def of_failed(self, call: Call) -> Node:
        """The node of an op that raised: everything but its outputs."""
        return self._build(call, (), None, None)

    def _build(
        self,
        call: Call,
        specs: tuple[TensorSpec, ...],
        device: torch.device | None,
        known: Node | None,
        outputs: Sequence[torch.Tensor] = (),
    ) -> Node:
        self.built += 1
        forward = call.forward
        if known is not None:  # called from the same line as then: walking the stack is what costs most
            stack = known.stack
        elif call.frame is None and forward is not None and forward.node is not None:
            stack = forward.node.stack
        else:
            stack = capture_stack(call.frame or sys._getframe(1))
        phase, module = call.entry.position or ("", None)
        if known is None and not self._stays_compiled and not self._observation.ran_compiled:
            self._observation.ran_compiled = ran_compiled(sys._getframe(1))
        return Node(
            name=call.entry.name,
            op_type=call.op.op_type,
            inputs=call.inputs,
            control_inputs=call.control,
            outputs=specs,
            device="" if device is None else devices.name_of(device),
            attributes=call.op.attributes(call.args, call.kwargs),
            stack=stack,
            forward=None if forward is None else forward.name,
            is_view=call.op.is_view,
            phase=phase,
            module=module,
            writes=call.op.writes_into(call.op.written_places(call.args, call.kwargs), outputs),
        )

    def of_gradient(
        self, entry: NameEntry, path: str, gradient: torch.Tensor, place: Place, inputs: tuple[str, ...]
    ) -> Node:
        """The node of the complete gradient of a parameter."""
        shapes = [(place[SHAPE], place[DTYPE])]
        if entry.node is None or entry.inputs != inputs or entry.shapes != shapes:
            entry.inputs, entry.shapes = inputs, shapes
            entry.node = gradient_node(entry.name, path, gradient, inputs, devices.name_of(gradient.device))
        return entry.node


def gradient_node(name: str, path: str, gradient: torch.Tensor, inputs: tuple[str, ...], device: str) -> Node:
    """The node of a complete gradient, by the path of its parameter."""
    outputs, module = specs_of((gradient,)), module_holding(path)
    return new_node(
        name, "AccumulateGrad", inputs, (), outputs, device, {}, (), path, True, "backward", module, ()
    )
