"""Builds the nodes of ops that the observer meets for the first time, or in a way that is new.

It recognises a repeated call by comparing numbers and asks here otherwise: `begin` before the op runs, while its
arguments are there, and one of the others when it has run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from tensortap.engines.torch import devices
from tensortap.engines.torch.call_nodes import gradient_node
from tensortap.engines.torch.interceptor import Observation
from tensortap.engines.torch.lines import stack_of
from tensortap.engines.torch.observer.library import NativeObserver
from tensortap.engines.torch.observer.numbers import SLOT_BITS, SLOT_MASK, Numbers
from tensortap.engines.torch.outside import constant_position, hidden_view_node
from tensortap.engines.torch.program import variable_node
from tensortap.engines.torch.schema import UNINITIALISED, Op, op_of
from tensortap.engines.torch.values import spec_of, specs_of
from tensortap.records import Node, TensorSpec, new_node
from tensortap.seam.graph import merged_attributes
from tensortap.untracked import untrack

__all__ = ["Nodes"]

_KINDS_KEPT = 20_000
_VARIED_KEPT = 1000
_RUNS_REMEMBERED = 8  # that a program goes through in turn, such as rollouts and updates


class Nodes:
    """The nodes that one observer knows, by number.

    Args:
        observer: asks for them.
        numbers: what its other numbers mean.
    """

    def __init__(self, observer: NativeObserver, numbers: Numbers) -> None:
        self._observer = observer
        self._numbers = numbers
        self._operators: list[Op] = []
        self._nodes: list[Node] = []
        self._made = 0
        self._executed_lately: dict[bytes, tuple[Node, ...]] = {}
        self._executed_made = 0  # of how many nodes it knows
        self._attributes: Mapping[str, Any] = {}  # of the call whose node will have to be built
        self._first_device: torch.device | None = None  # of its first tensor
        self._written_places: Mapping[int, int] = {}
        self._has_forward_stack = False  # the last node that was built
        self._kinds: list[Node] = []  # one of each
        self._kind_has_forward_stack: list[bool] = []
        self._varied: dict[
            int, tuple[Mapping[str, Any], Mapping[str, Any]]
        ] = {}  # by identity, before and since
        self._device_names: dict[torch.device, str] = {}  # for one run: the rank may come to be known later
        self._observation: Observation | None = None
        self._failed: tuple[Node, CodeType, int] | None = None
        self.parameter_paths: list[str] = []
        """Of the parameters whose gradients are told of, by their number."""

    def __len__(self) -> int:
        return len(self._nodes) + len(self._kinds)

    def __getitem__(self, number: int) -> Node:
        return self._nodes[number]

    # --- one run -----------------------------------------------------------------------------------

    def start_run(self, observation: Observation) -> None:
        """Nothing has been executed yet."""
        self._observation = observation
        self._failed = None
        self._device_names.clear()

    def end_run(self) -> None:
        """Hold nothing of a run that is over."""
        self._observation = self._failed = None

    def executed(self, numbers: bytes) -> tuple[Node, ...]:
        """The nodes of the run, of which these are the numbers; for a program that repeats itself, the same object."""
        if self._executed_made != self._made or len(self._executed_lately) > _RUNS_REMEMBERED:
            self._executed_made = self._made
            self._executed_lately.clear()
        nodes = self._executed_lately.get(numbers)
        if nodes is None:
            nodes = tuple(map(self._nodes.__getitem__, memoryview(numbers).cast("i")))
            untrack(nodes)  # thousands of them
            self._executed_lately[numbers] = nodes
        return nodes

    # --- ops that raise ----------------------------------------------------------------------------

    def failed(
        self,
        operator: int,
        entry: int,
        known: int,
        kind: int,
        forward: int,
        inputs: tuple[int, ...],
        controls: tuple[int, ...],
    ) -> None:
        """An op raised: keep its node, and where the exception will say it began."""
        if kind >= 0:
            node = replace(self._node_alike(kind, entry, forward, inputs, controls), outputs=(), writes=())
        else:
            node = self._node(operator, entry, known, forward, inputs, controls, ())
        caller = sys._getframe().f_back
        if caller is not None:
            self._failed = (node, caller.f_code, caller.f_lasti)

    def failure_was_caught(self) -> None:
        """The program goes on after an op raised: what it raises later is something else."""
        self._failed = None

    def failure(self, error: BaseException) -> tuple[BaseException, Node] | None:
        """The node that raised an exception: the last one that failed, if it did so where the exception began."""
        traceback = error.__traceback__
        if self._failed is None or traceback is None:
            return None
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
        node, code, instruction = self._failed
        began_there = traceback.tb_frame.f_code is code and traceback.tb_lasti == instruction
        return (error, node) if began_there else None

    # --- ops ---------------------------------------------------------------------------------------

    def new_operator(
        self, name: str, overload: str
    ) -> tuple[int, int, bool, bool, bool, int, bool, tuple[int, ...], bool, bool, bool]:
        """What the schema says of an operator that is executed for the first time."""
        namespace, _, plain_name = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), plain_name)
        op = op_of(getattr(packet, overload or "default"))
        self._operators.append(op)
        return (
            len(self._operators) - 1,
            self._numbers.label(op.label),
            op.transparent,
            op.is_view,
            op.is_communication,
            op.training_position,
            op.hides_writes,
            op.written_positions,
            op.op_type in UNINITIALISED,
            op.is_collective,
            op.is_wait,
        )

    def begin(self, operator: int, values: tuple[Any, ...]) -> None:
        """Remember the arguments of an op whose node will have to be built."""
        op = self._operators[operator]
        self._attributes = op.attributes_of_all(values)
        self._first_device = op.device_of(values)
        self._written_places = op.written_places(values, {})

    def arguments_vary(self, node: int, operator: int, values: tuple[Any, ...]) -> None:
        """An argument keeps changing: have the node say so."""
        op = self._operators[operator]
        known = self._nodes[node]
        attributes = merged_attributes(known.attributes, op.attributes_of_all(values))
        # Nodes that shared theirs go on sharing them.
        shared = self._varied.get(id(known.attributes))
        if shared is not None and shared[1] == attributes:
            attributes = shared[1]
        else:
            if len(self._varied) >= _VARIED_KEPT:
                self._varied.clear()
            self._varied[id(known.attributes)] = (known.attributes, attributes)
        self._nodes[node] = varied = replace(known, attributes=attributes)
        untrack(varied)
        self._made += 1

    def shapes_vary(self, node: int, outputs: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
        """Shapes of outputs keep changing: have the node say so. For each output, its varying dimensions as bits."""
        known = self._nodes[node]
        specs = tuple(a.merged_with(spec_of(b)) for a, b in zip(known.outputs, outputs, strict=True))
        self._nodes[node] = replace(known, outputs=specs)
        self._made += 1
        return tuple(sum(1 << i for i, dim in enumerate(spec.shape[:32]) if dim is None) for spec in specs)

    def build(
        self,
        operator: int,
        entry: int,
        known: int,
        reused: int,
        forward: int,
        inputs: tuple[int, ...],
        controls: tuple[int, ...],
        outputs: tuple[torch.Tensor, ...],
    ) -> int:
        """Build the node of a finished call. `known` is a node that differs in outputs and inputs only.

        Returns:
            Its number, and that of its kind, from 1 on, in the upper half; 0 if that is not to be asked for again.
        """
        node = self._node(operator, entry, known, forward, inputs, controls, outputs)
        self._numbers.entries[entry].node = node
        kind = 0 if known >= 0 else self._new_kind(node, self._has_forward_stack)
        return kind << 32 | self.keep(reused, node)

    def build_alike(
        self,
        kind: int,
        entry: int,
        reused: int,
        forward: int,
        inputs: tuple[int, ...],
        controls: tuple[int, ...],
        outputs: tuple[torch.Tensor, ...] | None,
    ) -> int:
        """Build the node of a finished call that is like another one of another name; the numbers as `build` does.

        Args:
            kind: of that other one.
            entry: the name.
            reused: a node that will not be needed any more, or -1.
            forward: the name of the op it is the gradient of, or -1.
            inputs: values.
            controls: names of what has changed the memory of inputs.
            outputs: if they are not as those of the other one.
        """
        node, number = self._node_alike(kind, entry, forward, inputs, controls, outputs), 0
        if outputs is not None:
            number = self._new_kind(node, self._kind_has_forward_stack[kind])
        self._numbers.entries[entry].node = node
        return number << 32 | self.keep(reused, node)

    def _new_kind(self, node: Node, has_forward_stack: bool) -> int:
        if len(self._kinds) >= _KINDS_KEPT:
            return 0
        self._kinds.append(node)
        self._kind_has_forward_stack.append(has_forward_stack)
        return len(self._kinds)

    def _node_alike(
        self,
        kind: int,
        entry: int,
        forward: int,
        inputs: tuple[int, ...],
        controls: tuple[int, ...],
        outputs: tuple[torch.Tensor, ...] | None = None,
    ) -> Node:
        like, entries = self._kinds[kind], self._numbers.entries
        named, origin = entries[entry], None if forward < 0 else entries[forward]
        phase, module = named.position or ("", None)
        stack = like.stack
        if origin is not None and origin.node is not None and self._kind_has_forward_stack[kind]:
            stack = origin.node.stack
        return new_node(
            named.name,
            like.op_type,
            self._tensor_names(inputs),
            tuple([entries[each].name for each in controls]) if controls else (),
            like.outputs if outputs is None else specs_of(outputs),
            self._device_name(outputs[0].device) if outputs else like.device,
            like.attributes,
            stack,
            None if origin is None else origin.name,
            like.is_view,
            phase,
            module,
            like.writes,
        )

    def _node(
        self,
        operator: int,
        entry: int,
        known: int,
        forward: int,
        inputs: tuple[int, ...],
        controls: tuple[int, ...],
        outputs: tuple[torch.Tensor, ...],
    ) -> Node:
        op = self._operators[operator]
        specs = specs_of(outputs)
        if known >= 0:
            like = self._nodes[known]
            where = self._device_name(outputs[0].device) if outputs else like.device
            return self._with_inputs(like, inputs, controls, specs, where)
        device = outputs[0].device if outputs else self._first_device
        entries = self._numbers.entries
        forward_node = entries[forward].node if forward >= 0 else None
        stack = stack_of(sys._getframe(1).f_back)  # none on a thread that runs no Python
        if stack.ran_compiled and self._observation is not None:
            self._observation.ran_compiled = True
        self._has_forward_stack = forward_node is not None and not stack.is_called
        phase, module = entries[entry].position or ("", None)
        return new_node(
            entries[entry].name,
            op.op_type,
            self._tensor_names(inputs),
            tuple([entries[each].name for each in controls]) if controls else (),
            specs,
            "" if device is None else self._device_name(device),
            self._attributes,
            stack.lines if forward_node is None or stack.is_called else forward_node.stack,
            None if forward < 0 else entries[forward].name,
            op.is_view,
            phase,
            module,
            op.writes_into(self._written_places, outputs),
        )

    def rewired(
        self, entry: int, like: int, reused: int, inputs: tuple[int, ...], controls: tuple[int, ...]
    ) -> int:
        """Build a node that differs from another of the same name only in where its inputs come from."""
        known = self._nodes[like]
        node = self._with_inputs(known, inputs, controls, known.outputs, known.device)
        self._numbers.entries[entry].node = node
        return self.exchange(reused, node)

    def _with_inputs(
        self,
        like: Node,
        inputs: tuple[int, ...],
        controls: tuple[int, ...],
        outputs: tuple[TensorSpec, ...],
        device: str,
    ) -> Node:
        # Not by `replace`, and with few calls: loops that grow make thousands of these in every run.
        entries = self._numbers.entries
        return new_node(
            like.name,
            like.op_type,
            self._tensor_names(inputs),
            tuple([entries[each].name for each in controls]) if controls else (),
            outputs,
            device,
            like.attributes,
            like.stack,
            like.forward,
            like.is_view,
            like.phase,
            like.module,
            like.writes,
        )

    def _tensor_names(self, values: tuple[int, ...]) -> tuple[str, ...]:
        entries = self._numbers.entries
        return tuple(
            [
                entries[each >> SLOT_BITS].tensor(each & SLOT_MASK)
                if each & SLOT_MASK
                else entries[each >> SLOT_BITS].tensor_0
                for each in values
            ]
        )

    # --- what is no op -----------------------------------------------------------------------------

    def constant(self, entry: int, reused: int, tensor: torch.Tensor) -> int:
        """Build the node of a tensor that came from nowhere."""
        named, device = self._numbers.entries[entry], self._device_name(tensor.device)
        node = variable_node(named.name, tensor, "Const", device, constant_position(named.position))
        return self.keep(reused, node)

    def hidden_view(self, entry: int, reused: int, root: int, writer: int, tensor: torch.Tensor) -> int:
        """Build the node of a view that was made where nobody could see it."""
        numbers = self._numbers
        last_writer = None if writer < 0 else numbers.entries[writer].name
        named = numbers.entries[entry]
        node = hidden_view_node(named.name, numbers.tensor_name(root), last_writer, tensor, named.position)
        return self.keep(reused, node)

    def gradient(self, entry: int, reused: int, value: int, tensor: torch.Tensor, parameter: int) -> int:
        """Build the node of the complete gradient of a parameter."""
        inputs = () if value < 0 else (self._numbers.tensor_name(value),)
        path, device = self.parameter_paths[parameter], self._device_name(tensor.device)
        node = gradient_node(self._numbers.entries[entry].name, path, tensor, inputs, device)
        return self.keep(reused, node)

    # --- their numbers -----------------------------------------------------------------------------

    def keep(self, reused: int, node: Node) -> int:
        """Give a node a new number, or that of one that will not be needed any more and was watched otherwise."""
        if reused >= 0:
            self._observer.library.tt_node_changed(self._observer.handle, reused)
        return self.exchange(reused, node)

    def exchange(self, reused: int, node: Node) -> int:
        """The same with one that is watched as the node before it was."""
        untrack(node)
        self._made += 1
        if reused >= 0:
            self._nodes[reused] = node
            return reused
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _device_name(self, device: torch.device) -> str:
        name = self._device_names.get(device)
        if name is None:
            name = self._device_names[device] = devices.name_of(device)
        return name
