"""Turns the ops of one run into named nodes, and hands their values to whoever asked.

For every op, in order:
1. `before`: look up which nodes made its inputs, find scope and name, tap inputs that come from outside;
2. the op runs;
3. `after`: apply feeds, name the outputs, build the node (or find it unchanged), tap the outputs.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from tensortap.engines.torch import devices, feeds
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.names import Entry, NameTable
from tensortap.engines.torch.program import Program, variable_node
from tensortap.engines.torch.provenance import Origin, Place, Provenance, place_of
from tensortap.engines.torch.schema import Op
from tensortap.engines.torch.scopes import Scopes
from tensortap.engines.torch.source import capture_stack, first_user_frame, ran_compiled
from tensortap.engines.torch.values import dtype_name, snapshot, spec_of
from tensortap.errors import DeadlineExceededError
from tensortap.records import Node, TensorSpec

__all__ = ["Call", "Recorder"]

_current_autograd_node = torch._C._current_autograd_node
_sequence_number = torch._C._autograd._get_sequence_nr
_NO_SEQUENCE_NUMBER = 2**64 - 1  # of AccumulateGrad nodes, which belong to a parameter instead


class Call:
    """One op between `before` and `after`."""

    __slots__ = (
        "args",
        "control",
        "entry",
        "forward",
        "frame",
        "inputs",
        "kwargs",
        "op",
        "others",
        "owner",
        "tensors",
    )

    op: Op
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tensors: list[torch.Tensor]
    others: list[Any]
    inputs: tuple[str, ...]
    control: tuple[str, ...]
    entry: Entry
    forward: Entry | None
    owner: str | None
    frame: FrameType | None


class Recorder:
    """The record of one run in the making."""

    def __init__(self, plan: RunPlan, program: Program, names: NameTable, observation: Observation) -> None:
        self._plan = plan
        self._program = program
        self._names = names
        self._observation = observation
        self._nodes = observation.nodes
        self._provenance = Provenance()
        self._parameter_paths: dict[int, str] = {}
        self._owners: dict[str, str] = {}
        self._forward_of: dict[int, Entry] = {}
        self._next_sequence = _sequence_number()
        self._previous: Entry | None = None
        self._previous_wrote = False
        self._cuts: set[str] = set()
        self._substitutes: dict[str, torch.Tensor] = {}
        self._stepping: tuple[str, Optimizer] | None = None
        self.scopes = Scopes(program, self._name_module_inputs, self._name_optimizer_state)
        names.start_run()
        self._name_sources()

    # --- the two moments of an op ------------------------------------------------------------------

    def before(self, op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Everything that must be known, or seen, before the op runs."""
        if self._plan.deadline is not None and time.monotonic() > self._plan.deadline:
            raise DeadlineExceededError(None, "The run took longer than its timeout_in_ms.")
        call = Call()
        call.op, call.args, call.kwargs = op, args, kwargs
        call.tensors, call.others = op.split(args, kwargs)
        names: list[str | None] = []
        control: tuple[str, ...] = ()
        unknown = False
        for tensor in call.tensors:
            memory = self._provenance.memory_of(tensor)
            place = place_of(tensor)
            origin = memory.places.get(place)
            if origin is None and self._stepping is not None and self.scopes.optimizers:
                # State that the optimizer made in its first step is not known under its own name yet.
                self._name_optimizer_state(*self._stepping)
                origin = memory.places.get(place)
            if origin is None:
                unknown = True
                names.append(None)
                continue
            if origin.source is not None:
                self._use_source(origin, tensor)
            if origin.version != memory.version and memory.writer is not None:
                control = (*control, memory.writer)
            names.append(origin.name)
        call.frame = first_user_frame(sys._getframe(2))
        scope, call.forward, call.owner = self._scope(names)
        call.entry = entry = self._names.next(scope, op.label)
        if unknown:
            for position, name in enumerate(names):
                if name is None:
                    names[position] = self._name_unseen(entry, call.tensors[position])
        call.inputs = tuple(names)  # type: ignore[arg-type]  # no None is left
        call.control = tuple(dict.fromkeys(control)) if control else control
        if self._cuts:
            self._cut_gradients(call)
        if self._substitutes:
            call.args, call.kwargs = feeds.substitute(op, args, kwargs, call, self._substitutes)
        self._attribute_autograd_nodes(entry, call)
        return call

    def after(self, call: Call, result: Any) -> Any:
        """Name, build and tap what the op produced; the result, with fed values in place."""
        op, entry = call.op, call.entry
        outputs: list[torch.Tensor] = []
        if isinstance(result, torch.Tensor):
            outputs.append(result)
        elif result is not None:
            outputs.extend(t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
        written: list[torch.Tensor] = []
        if op.writes:
            written = op.written(call.args, call.kwargs)
            outputs.extend(t for t in written if not any(t is each for each in outputs))
        if self._plan.feeds:
            result = self._feed_outputs(call, result, outputs, written)
        places: list[Place] = []
        for slot, tensor in enumerate(outputs):
            memory = self._provenance.memory_of(tensor)
            place = place_of(tensor)
            places.append(place)
            if written and any(tensor is each for each in written):
                memory.version += 1
                memory.writer = entry.name
            elif op.is_view:
                known = memory.places.get(place)
                if known is not None and known.version == memory.version:
                    continue  # the same memory under the same shape is the same value: it has its name
            name = entry.tensor(slot)
            memory.places[place] = Origin(name, memory.version)
            if memory.root is None:
                memory.root = (name, tensor.dtype)
            if call.owner is not None:
                self._owners[name] = call.owner
        node = self._node(call, outputs, places)
        self._nodes.append(node)
        for slot, tensor in enumerate(outputs):
            self._emit(entry.tensor(slot), node, slot, tensor)
        return result

    def failed_node(self, call: Call) -> Node:
        """The node of an op that raised: everything but its outputs."""
        return self._build_node(call, ())

    # --- scopes and attribution --------------------------------------------------------------------

    def _scope(self, inputs: Sequence[str | None]) -> tuple[str, Entry | None, str | None]:
        """The scope of the next op; its forward node in a gradient; its parameter in an optimizer."""
        scopes = self.scopes
        running = _current_autograd_node()
        if running is not None and not scopes.in_recomputation():
            sequence = running._sequence_nr()
            if sequence == _NO_SEQUENCE_NUMBER:
                return f"gradients/{self._leaf_name(running)}/", None, None
            forward = self._forward_of.get(sequence)
            if forward is None:  # its forward op ran before this run
                return f"gradients/{running.name()}/", None, None
            return f"gradients/{forward.name}/", forward, None
        scope = scopes.forward_scope()
        if scopes.optimizers and not scopes.modules:
            owners = {self._owners.get(name) for name in inputs if name is not None} - {None}
            if len(owners) == 1:
                owner = owners.pop()
                return f"{scope}{owner}/", None, owner
        return scope, None, None

    def _leaf_name(self, accumulate_grad: Any) -> str:
        leaf = accumulate_grad.variable
        path = self._parameter_paths.get(id(leaf))
        if path is None:
            origin = self._provenance.find(leaf)
            path = origin.name.rpartition(":")[0] if origin is not None else "leaf"
        return path

    def _attribute_autograd_nodes(self, entry: Entry, call: Call) -> None:
        """Remember which op the autograd nodes made since the last op belong to.

        PyTorch makes the autograd node of an op just before it runs the op, so the newest one is this op's.
        Writing through a view makes another one (CopySlices) right *after* the op, which shows up here
        together with the next op's.
        """
        following = _sequence_number()
        if following == self._next_sequence:
            self._previous, self._previous_wrote = entry, bool(call.op.writes)
            return
        for sequence in range(self._next_sequence, following):
            self._forward_of[sequence] = entry
        if self._previous_wrote and self._previous is not None:
            own = torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors)
            for sequence in range(self._next_sequence, following - (1 if own else 0)):
                self._forward_of[sequence] = self._previous
        self._next_sequence = following
        self._previous, self._previous_wrote = entry, bool(call.op.writes)

    # --- tensors from outside the run --------------------------------------------------------------

    def _name_sources(self) -> None:
        for name, tensor in self._plan.inputs.items():
            self._add_source(name, tensor, "Placeholder")
        for path, parameter in self._program.parameters():
            self._parameter_paths[id(parameter)] = path
            self._add_source(path, parameter)
            if parameter.grad is not None:
                self._add_source(f"{path}/grad", parameter.grad)
        for path, buffer in self._program.buffers():
            self._add_source(path, buffer)

    def _add_source(self, name: str, tensor: torch.Tensor, op_type: str = "Variable") -> str:
        node = self._names.source(name)
        if node is None or node.outputs[0] != spec_of(tensor):
            node = variable_node(name, tensor, op_type, devices.name_of(tensor.device))
            self._names.keep_source(node)
        self._provenance.assign(tensor, node.tensor(0), node)
        return node.tensor(0)

    def _use_source(self, origin: Origin, tensor: torch.Tensor) -> None:
        node, origin.source = origin.source, None
        if node is None:
            return
        self._nodes.append(node)
        self._emit(origin.name, node, 0, tensor)
        if origin.name in self._plan.feeds and node.op_type == "Const":
            self._substitutes[origin.name] = feeds.fitting(origin.name, self._plan.feeds[origin.name], tensor)
            self._observation.fed.add(origin.name)

    def _name_unseen(self, consumer: Entry, tensor: torch.Tensor) -> str:
        """Name a tensor that no op of this run made, after the op that uses it first."""
        memory = self._provenance.memory_of(tensor)
        found = memory.places.get(place_of(tensor))
        if found is not None:  # the same op takes it twice
            return found.name
        scope = consumer.name + "/"
        if memory.root is not None and memory.root[1] == tensor.dtype and tensor.layout is torch.strided:
            # A view, made where nobody could see it, of memory that does have a name.
            entry = self._names.next(scope, "as_strided")
            geometry = {"size": list(tensor.shape), "stride": list(tensor.stride())}
            node = Node(
                entry.name,
                "aten::as_strided",
                (memory.root[0],),
                (memory.writer,) if memory.writer is not None else (),
                (spec_of(tensor),),
                devices.name_of(tensor.device),
                {**geometry, "storage_offset": tensor.storage_offset()},
                is_view=True,
            )
            self._provenance.assign(tensor, entry.tensor(0))
            self._nodes.append(node)
            self._emit(entry.tensor(0), node, 0, tensor)
            return entry.tensor(0)
        entry = self._names.next(scope, "const")
        name = self._add_source(entry.name, tensor, "Const")
        origin = self._provenance.find(tensor)
        if origin is not None:
            self._use_source(origin, tensor)
        return name

    def _name_module_inputs(self, path: str, module: nn.Module, args: Any) -> None:
        """Call tensors that a top-level module is given from outside after the parameters of `forward`."""
        try:
            parameters = list(inspect.signature(module.forward).parameters)
            for position, value in enumerate(args):
                if isinstance(value, torch.Tensor) and self._provenance.find(value) is None:
                    known = position < len(parameters)
                    label = parameters[position] if known else f"input_{position}"
                    self._add_source(f"{path}/{label}", value, "Placeholder")
        except Exception:
            self._observation.fault(f"naming the inputs of module {path!r}")

    def _name_optimizer_state(self, scope: str, optimizer: Optimizer) -> None:
        try:
            self._stepping = (scope, optimizer)
            number = 0
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    path = self._parameter_paths.get(id(parameter))
                    if path is None:
                        path = f"param_{number}"
                        self._add_source(f"{scope}/{path}", parameter)
                    number += 1
                    for tensor in (parameter, parameter.grad):
                        origin = None if tensor is None else self._provenance.find(tensor)
                        if origin is not None:
                            self._owners[origin.name] = path
            for path, name, tensor in self._program.optimizer_state(optimizer, self._parameter_paths):
                origin = self._provenance.find(tensor)
                tensor_name = self._add_source(name, tensor) if origin is None else origin.name
                self._owners[tensor_name] = path
        except Exception:
            self._observation.fault(f"naming the state of {scope!r}")

    # --- complete gradients ------------------------------------------------------------------------

    @contextmanager
    def gradient_hooks(self) -> Iterator[None]:
        """Make a node of the complete gradient of every parameter, when autograd has put it in place."""
        hooked: list[tuple[nn.Parameter, Any]] = []
        try:
            for path, parameter in self._program.parameters():
                if parameter.requires_grad and parameter.is_leaf:
                    register: Any = parameter.register_post_accumulate_grad_hook
                    hooked.append((parameter, register(self._on(path))))
            yield
        finally:
            for parameter, handle in hooked:
                handle.remove()
                if not parameter._post_accumulate_grad_hooks:
                    # Leave the parameter as it was: an empty dict would look like a change to torch.compile.
                    parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]

    def _on(self, path: str) -> Any:
        owner = threading.get_ident()

        def gradient_is_complete(parameter: torch.Tensor) -> None:
            if threading.get_ident() != owner:
                return  # the backward pass of another thread
            try:
                with torch._C._DisableTorchDispatch(), torch.no_grad():
                    self._record_gradient(path, parameter)
            except feeds.FeedError:
                raise
            except Exception:
                self._observation.fault(f"recording the gradient of {path!r}")

        return gradient_is_complete

    def _record_gradient(self, path: str, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        parent, _, leaf = f"gradients/{path}".rpartition("/")
        entry = self._names.next(parent + "/", leaf)
        name = entry.tensor(0)
        origin = self._provenance.find(gradient)
        if name in self._plan.feeds:
            gradient.copy_(feeds.fitting(name, self._plan.feeds[name], gradient))
            self._observation.fed.add(name)
        node = Node(
            entry.name,
            "AccumulateGrad",
            () if origin is None else (origin.name,),
            outputs=(spec_of(gradient),),
            device=devices.name_of(gradient.device),
            forward=path,
            is_view=True,
        )
        if entry.node != node:
            entry.node = node
        self._provenance.assign(gradient, name)
        self._nodes.append(entry.node)
        self._emit(name, entry.node, 0, gradient)

    # --- nodes -------------------------------------------------------------------------------------

    def _node(self, call: Call, outputs: list[torch.Tensor], places: list[Place]) -> Node:
        """The node of a finished call: the one of an earlier run when nothing about it has changed."""
        entry, frame = call.entry, call.frame
        code = None if frame is None else frame.f_code
        instruction = -1 if frame is None else frame.f_lasti
        shapes = [(place[1], place[3]) for place in places]
        if (
            entry.node is not None
            and entry.func is call.op.func
            and entry.code is code
            and entry.instruction == instruction
            and entry.inputs == call.inputs
            and entry.shapes == shapes
            and entry.others == call.others
            and entry.node.control_inputs == call.control
        ):
            return entry.node
        specs = tuple(TensorSpec(dtype_name(dtype), tuple(shape)) for shape, dtype in shapes)
        device = outputs[0].device if outputs else call.tensors[0].device if call.tensors else None
        same_line = entry.node is not None and (entry.code, entry.instruction) == (code, instruction)
        entry.node = self._build_node(call, specs, device, entry.node if same_line else None)
        entry.func, entry.code, entry.instruction = call.op.func, code, instruction
        entry.inputs, entry.shapes, entry.others = call.inputs, shapes, call.others
        return entry.node

    def _build_node(
        self,
        call: Call,
        specs: tuple[TensorSpec, ...],
        device: torch.device | None = None,
        known: Node | None = None,
    ) -> Node:
        forward = call.forward
        if known is not None:  # called from the same line as then: walking the stack is what costs most
            stack = known.stack
        elif call.frame is None and forward is not None and forward.node is not None:
            stack = forward.node.stack
        else:
            stack = capture_stack(call.frame or sys._getframe(1))
        if not self._observation.ran_compiled:
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
        )

    # --- values ------------------------------------------------------------------------------------

    def _emit(self, name: str, node: Node, slot: int, tensor: torch.Tensor) -> None:
        if name in self._plan.captures:
            self._observation.captured[name] = snapshot(tensor)
        for tap in self._plan.taps:
            try:
                tap(node, slot, tensor)
            except Exception:
                self._observation.fault(f"tapping {name!r}")

    def _feed_outputs(
        self, call: Call, result: Any, outputs: list[torch.Tensor], written: list[torch.Tensor]
    ) -> Any:
        for slot, tensor in enumerate(outputs):
            name = call.entry.tensor(slot)
            if name not in self._plan.feeds:
                continue
            value = feeds.fitting(name, self._plan.feeds[name], tensor)
            self._observation.fed.add(name)
            self._cuts.add(name)
            if call.op.is_view:
                # Writing into a view would change its base too, which nobody asked for.
                fresh = torch.empty_like(tensor).copy_(value)
                result = feeds.replace_leaf(result, tensor, fresh)
                outputs[slot] = fresh
            else:
                tensor.copy_(value)
        return result

    def _cut_gradients(self, call: Call) -> None:
        """Let no gradient pass from a fed value to the op whose output it replaced."""
        for name, tensor in zip(call.inputs, call.tensors, strict=True):
            if name in self._cuts:
                self._cuts.discard(name)
                if tensor.grad_fn is not None:
                    feeds.cut_gradient(tensor)
