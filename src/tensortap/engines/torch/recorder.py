"""Turns the ops of one run into named nodes, and hands their values to whoever asked.

For every op, in order:
1. `before`: look up which nodes made its inputs, find scope and name, tap inputs that come from outside;
2. the op runs;
3. `after`: apply feeds, name the outputs, build the node (or find it unchanged), tap the outputs.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch import devices, feeds
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.lines import callers_of, capture_stack, first_user_frame, ran_compiled
from tensortap.engines.torch.memory import is_freed
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.outside import Outside
from tensortap.engines.torch.places import DTYPE, SHAPE, Content, Memory, Place, Places
from tensortap.engines.torch.program import Program, module_holding
from tensortap.engines.torch.schema import UNINITIALISED, Op
from tensortap.engines.torch.scopes import Scopes
from tensortap.engines.torch.tensors import TENSORS
from tensortap.engines.torch.values import dtype_name, plain_shape, spec_of
from tensortap.errors import DeadlineExceededError
from tensortap.records import Node, Position, TensorSpec
from tensortap.seam.graph import merged_attributes

if TYPE_CHECKING:
    from tensortap.engines.observe.watching import Watching
    from tensortap.engines.torch.compiled import GraphTaps

__all__ = ["Call", "Recorder"]

_current_autograd_node = torch._C._current_autograd_node
_sequence_number = torch._C._autograd._get_sequence_nr
_NO_SEQUENCE_NUMBER = 2**64 - 1  # of AccumulateGrad nodes, which belong to a parameter instead

_NOTHING: Mapping[int, torch.Tensor] = {}


class Call:
    """One op between `before` and `after`."""

    __slots__ = (
        "args",
        "control",
        "entry",
        "forward",
        "frame",
        "inputs",
        "is_complex",
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
    is_complex: bool
    control: tuple[str, ...]
    entry: NameEntry
    forward: NameEntry | None
    owner: str | None
    frame: FrameType | None


class Recorder:
    """The record of one run in the making. This is the hot path: it runs once for every op."""

    def __init__(self, plan: RunPlan, program: Program, names: RunNames, observation: Observation) -> None:
        self._plan = plan
        self._taps = plan.all_taps
        self._emits = bool(plan.captures or self._taps)
        watching = plan.watching
        self._bad = watching.bad if watching is not None and watching.bad.limit else None
        self._stops = watching.publisher if watching is not None and watching.stops else None
        self._program = program
        self._names = names
        self._observation = observation
        self._nodes = observation.nodes
        self._limits = plan.limits
        self._built = 0
        self._places = Places()
        self._forward_of: dict[int, NameEntry] = {}
        self._next_sequence = _sequence_number()
        self._previous: NameEntry | None = None
        self._previous_wrote = False
        self._in_wrapper = False
        self._cuts: list[weakref.ref[torch.Tensor]] = []
        self._substitutes: dict[str, torch.Tensor] = {}
        self._outside = Outside(program, names, self._places, observation, self._record_source)
        self.scopes = Scopes(
            program,
            self._outside.name_module_inputs,
            self._outside.name_optimizer_state,
            around_compiled=plan.stays_compiled,
        )
        names.start_run()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Name what is known before the run, and let go of everything after it."""
        try:
            self._outside.name_what_is_known(self._plan.inputs)
            yield
        finally:
            self._see_off_bad()
            self._places.release()
            self._substitutes.clear()

    def _see_off_bad(self) -> None:
        watching = self._plan.watching
        if self._bad is None or watching is None:
            return
        try:
            index = watching.publisher.info.index
            self._observation.gone += self._names.survivors.see_off(self._places, self._bad.kinds_of, index)
        except Exception:
            self._observation.fault("taking leave of bad values")

    def leaves_out(self) -> bool:
        """Whether the run has become too long for the next op to be recorded; then it is counted."""
        limits = self._limits
        if limits is None:
            return False
        if not limits.reached:
            limits.reached = limits.are_over(len(self._nodes), self._built, self.scopes.has_called_modules)
        self._observation.unrecorded += limits.reached
        return limits.reached

    def enter_wrapper(self) -> None:
        """An op on a wrapper begins, which is seen as the ops that it executes on what it wraps.

        The autograd node is that of the first of them that computes: what is communicated before are its inputs.
        """
        self._in_wrapper = self._in_wrapper or _sequence_number() != self._next_sequence

    # --- the two moments of an op ------------------------------------------------------------------

    def before(self, op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Everything that must be known, or seen, before the op runs."""
        if self._plan.deadline is not None and time.monotonic() > self._plan.deadline:
            raise DeadlineExceededError(None, "The run took longer than its timeout_in_ms.")
        call = Call()
        call.op, call.args, call.kwargs = op, args, kwargs
        call.tensors, call.others = op.split(args, kwargs)
        call.is_complex = False
        origins = self._places.origins
        place_of = self._places.place_of
        names: list[str] = []
        control: list[str] = []
        unseen: list[tuple[int, Place]] = []
        for tensor in call.tensors:
            place = place_of(tensor)
            if place[DTYPE].is_complex:
                call.is_complex = True
            origin = origins.get(place)
            if origin is None and self.scopes.optimizers:
                origin = self._outside.find_new_state(place)
            if origin is None:
                unseen.append((len(names), place))
                names.append("")
                continue
            if origin.source is not None:
                self._outside.use(origin, tensor)
            memory = origin.memory
            if memory.content is Content.ARRIVING and not (op.is_view or op.is_collective or op.is_wait):
                self._arrive(memory, origin.name, tensor)
            if origin.version != memory.version and memory.writer is not None:
                control.append(memory.writer)
            names.append(origin.name)
        call.frame = first_user_frame(sys._getframe(2))
        scope, call.forward, call.owner = self._scope(names)
        call.entry = entry = self._names.next(scope, op.label)
        if entry.position is None:
            entry.position = self._position(call)
        for position, place in unseen:
            names[position] = self._outside.name_unseen(entry, call.tensors[position], place)
        call.inputs = tuple(names)
        call.control = tuple(dict.fromkeys(control)) if control else ()
        if self._cuts:
            self._cut_gradients()
        if self._substitutes:
            call.args, call.kwargs = feeds.substitute(op, args, kwargs, call, self._substitutes)
        following = _sequence_number()
        if following != self._next_sequence and not (self._in_wrapper and op.is_communication):
            self._attribute_autograd_nodes(call, following)
        self._previous, self._previous_wrote = entry, bool(op.writes)
        return call

    def after(self, call: Call, result: Any) -> Any:
        """Name, build and tap what the op produced; the result, with fed values in place."""
        op, entry, places = call.op, call.entry, self._places
        if isinstance(result, torch.Tensor):
            outputs = [result]
        elif result is None:
            outputs = []
        else:
            outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        written: Mapping[int, torch.Tensor] = _NOTHING
        if op.writes:
            written = {id(each): each for each in op.written(call.args, call.kwargs)}
            if len(outputs) != 1 or len(written) != 1 or id(outputs[0]) not in written:
                returned = {id(each) for each in outputs}
                outputs.extend(each for key, each in written.items() if key not in returned)
        if self._plan.feeds:
            result = self._feed_outputs(call, result, outputs)
        made: list[Place] = []
        for slot, tensor in enumerate(outputs):
            place = places.place_of(tensor)
            made.append(place)
            name = entry.tensor(slot)
            if id(tensor) in written:
                memory = places.memory_at(place)
                if memory is not None:
                    memory.version += 1
                    memory.writer = entry.name
            elif op.is_view:
                known = places.origins.get(place)
                if known is not None and known.version == known.memory.version:
                    continue  # the same memory under the same shape is the same value: it has its name
            places.assign(tensor, place, name)
            if call.owner is not None:
                self._outside.owners[name] = call.owner
        node = self._node(call, outputs, made)
        self._nodes.append(node)
        if self._emits:
            # What an op has just made has memory; a view or a changed argument may have lost it.
            fresh = not op.is_view and not written
            if self._bad is not None:
                self._bad.begin()
            for slot, tensor in enumerate(outputs):
                if self._settle(op, made[slot], node, slot, tensor, id(tensor) in written):
                    self._emit(entry.tensor(slot), node, slot, tensor, fresh)
            if self._bad is not None:
                self._look_for_bad(node, outputs, call.tensors, written)
            if self._stops is not None:
                result = self._replace_outputs(call, result, outputs)
        return result

    def _settle(
        self, op: Op, place: Place, node: Node, slot: int, tensor: torch.Tensor, written: bool
    ) -> bool:
        """Note what an op has done to the memory of an output; whether there is something in it to be looked at."""
        memory = self._places.memory_at(place)
        if memory is None:
            return True
        if op.is_collective:
            memory.content, memory.arriving = Content.ARRIVING, (node.tensor(slot), node, slot)
        elif op.is_wait:
            memory.content = Content.THERE
        elif op.op_type in UNINITIALISED and not written:
            memory.content, memory.written_bytes = Content.GARBAGE, 0
        elif written and memory.content is Content.GARBAGE and place[0] >= 0:
            memory.written_bytes += tensor.numel() * tensor.element_size()
            if memory.written_bytes >= tensor.untyped_storage().nbytes():
                memory.content = Content.THERE
            return True
        return memory.content is Content.THERE

    def _arrive(self, memory: Memory, name: str, tensor: torch.Tensor) -> None:
        """An op computes with what a collective has brought."""
        memory.content, arrived = Content.THERE, memory.arriving
        if self._emits and arrived is not None and arrived[0] == name:
            self._emit(*arrived, tensor)

    def failed_node(self, call: Call) -> Node:
        """The node of an op that raised: everything but its outputs."""
        return self._build_node(call, (), None, None)

    def graph_taps(self, watching: Watching) -> GraphTaps:
        """What records the graphs of tapped compiled code as part of this run."""
        from tensortap.engines.torch.compiled import GraphTaps

        return GraphTaps(
            self._program.module_paths(),
            self._names,
            self._places,
            self._outside,
            self._observation,
            watching.summarised,
        )

    # --- scopes and attribution --------------------------------------------------------------------

    def _scope(self, inputs: Sequence[str]) -> tuple[str, NameEntry | None, str | None]:
        """The scope of the next op; its forward node in a gradient; its parameter in an optimizer."""
        scopes = self.scopes
        running = _current_autograd_node()
        if running is not None and not scopes.in_recomputation():
            sequence = running._sequence_nr()
            forward = self._forward_of.get(sequence)
            if forward is not None:
                return forward.gradient_scope, forward, None
            if sequence == _NO_SEQUENCE_NUMBER:
                return f"gradients/{self._leaf_name(running)}/", None, None
            return f"gradients/{running.name()}/", None, None  # its forward op ran before this run
        scope = scopes.forward_scope()
        if scopes.optimizers and not scopes.modules:
            known = self._outside.owners
            owners = {known[name] for name in inputs if name in known}
            if len(owners) == 1:
                owner = owners.pop()
                return f"{scope}{owner}/", None, owner
        return scope, None, None

    def _position(self, call: Call) -> Position:
        """Where in the program an op is executed that has a new name."""
        scopes = self.scopes
        running = _current_autograd_node()
        if running is not None and not scopes.in_recomputation():
            if call.forward is not None:
                known = call.forward.position
                return Position("backward", None if known is None else known.module)
            is_leaf = running._sequence_nr() == _NO_SEQUENCE_NUMBER
            return Position("backward", module_holding(self._leaf_name(running)) if is_leaf else None)
        if scopes.modules:
            scope, is_recomputed = scopes.modules[-1]
            return Position("forward", (scope.removeprefix("recompute/") if is_recomputed else scope)[:-1])
        if scopes.optimizers:
            return Position("optimizer", None if call.owner is None else module_holding(call.owner))
        return Position("forward")

    def _leaf_name(self, accumulate_grad: Any) -> str:
        leaf = accumulate_grad.variable
        path = self._outside.parameter_paths.get(id(leaf))
        if path is None:
            origin = self._places.find(leaf)
            path = origin.name.rpartition(":")[0] if origin is not None else "leaf"
        return path

    def _attribute_autograd_nodes(self, call: Call, following: int) -> None:
        """Remember which op the autograd nodes made since the last op belong to.

        PyTorch makes the autograd node of an op just before it runs the op, so the newest one is this op's.
        Writing through a view makes another one (CopySlices) right *after* the op, which shows up here
        together with the next op's.
        """
        for sequence in range(self._next_sequence, following):
            self._forward_of[sequence] = call.entry
        if self._previous_wrote and self._previous is not None:
            own = torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors)
            for sequence in range(self._next_sequence, following - (1 if own else 0)):
                self._forward_of[sequence] = self._previous
        self._next_sequence = following
        self._in_wrapper = False

    # --- complete gradients ------------------------------------------------------------------------

    def on_gradient(self, path: str, parameter: torch.Tensor) -> None:
        """Make a node of the complete gradient of a parameter."""
        try:
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                self._record_gradient(path, parameter)
        except feeds.FeedError:
            raise
        except Exception:
            self._observation.fault(f"recording the gradient of {path!r}")

    def _record_gradient(self, path: str, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        parent, _, leaf = f"gradients/{path}".rpartition("/")
        entry = self._names.next(parent + "/", leaf)
        name = entry.tensor(0)
        place = self._places.place_of(gradient)
        origin = self._places.origins.get(place)
        # What the last ops have done with it is not known in a run that has become too long.
        inputs = () if origin is None or self._observation.unrecorded else (origin.name,)
        if name in self._plan.feeds:
            feeds.overwrite(name, self._plan.feeds[name], gradient)
            self._observation.fed.add(name)
        shapes = [(place[SHAPE], place[DTYPE])]
        if entry.node is None or entry.inputs != inputs or entry.shapes != shapes:
            entry.inputs, entry.shapes = inputs, shapes
            entry.node = Node(
                entry.name,
                "AccumulateGrad",
                inputs,
                outputs=(spec_of(gradient),),
                device=devices.name_of(gradient.device),
                forward=path,
                is_view=True,
                phase="backward",
                module=module_holding(path),
            )
        self._places.assign(gradient, place, name)
        self._nodes.append(entry.node)
        self._emit(name, entry.node, 0, gradient)
        if self._stops is not None:
            replaced = feeds.replacement(self._stops, name, gradient)
            if replaced is not None:
                gradient.copy_(replaced)

    # --- nodes -------------------------------------------------------------------------------------

    def _node(self, call: Call, outputs: list[torch.Tensor], places: list[Place]) -> Node:
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
        entry.node = self._build_node(call, specs, device, node if same_line else None, outputs)
        entry.func, entry.code, entry.instruction, entry.callers = call.op.func, code, instruction, callers
        entry.inputs, entry.shapes, entry.others = call.inputs, shapes, call.others
        return entry.node

    def _build_node(
        self,
        call: Call,
        specs: tuple[TensorSpec, ...],
        device: torch.device | None,
        known: Node | None,
        outputs: Sequence[torch.Tensor] = (),
    ) -> Node:
        self._built += 1
        forward = call.forward
        if known is not None:  # called from the same line as then: walking the stack is what costs most
            stack = known.stack
        elif call.frame is None and forward is not None and forward.node is not None:
            stack = forward.node.stack
        else:
            stack = capture_stack(call.frame or sys._getframe(1))
        phase, module = call.entry.position or ("", None)
        if known is None and not self._plan.stays_compiled and not self._observation.ran_compiled:
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

    # --- values ------------------------------------------------------------------------------------

    def _record_source(self, name: str, node: Node, tensor: torch.Tensor) -> None:
        self._nodes.append(node)
        self._emit(name, node, 0, tensor)
        if name in self._plan.feeds and node.op_type in ("Const", "Placeholder"):
            self._substitutes[name] = feeds.fitting(name, self._plan.feeds[name], tensor)
            self._observation.fed.add(name)
        if self._stops is not None:
            replaced = feeds.replacement(self._stops, name, tensor, node.op_type in ("Const", "Placeholder"))
            if replaced is not None:
                self._substitutes[name] = replaced
        if self._bad is not None:
            self._look_for_bad(node, [tensor], (), _NOTHING)
            if self._bad.kinds_of(name):
                origin = self._names.survivors.origin_of(self._places.place_of(tensor))
                if origin is not None:
                    self._observation.came_from[name] = origin

    def _emit(self, name: str, node: Node, slot: int, tensor: torch.Tensor, fresh: bool = False) -> None:
        if not fresh and is_freed(tensor):
            self._observation.without_data.add(name)
            return
        if name in self._plan.captures:
            self._observation.capture(TENSORS, name, tensor)
        for tap in self._taps:
            try:
                tap(node, slot, tensor)
            except Exception:
                self._observation.fault(f"tapping {name!r}")

    def _look_for_bad(
        self,
        node: Node,
        outputs: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        written: Mapping[int, torch.Tensor],
    ) -> None:
        assert self._bad is not None
        try:
            self._bad.look(node, outputs, tensors, written)
        except Exception:
            self._observation.fault(f"keeping the values of {node.name!r}")

    def _feed_outputs(self, call: Call, result: Any, outputs: list[torch.Tensor]) -> Any:
        for slot, tensor in enumerate(outputs):
            name = call.entry.tensor(slot)
            if name not in self._plan.feeds:
                continue
            self._observation.fed.add(name)
            if call.op.is_view:
                # Writing into a view would change its base too, which nobody asked for.
                fresh = torch.empty_like(tensor)
                feeds.overwrite(name, self._plan.feeds[name], fresh)
                result = feeds.replace_leaf(result, tensor, fresh)
                outputs[slot] = tensor = fresh
            else:
                feeds.overwrite(name, self._plan.feeds[name], tensor)
            self._cuts.append(weakref.ref(tensor))
        return result

    def _replace_outputs(self, call: Call, result: Any, outputs: list[torch.Tensor]) -> Any:
        """Put the values in place that a debug server sent at breakpoints."""
        assert self._stops is not None
        for slot, tensor in enumerate(outputs):
            name = call.entry.tensor(slot)
            value = feeds.replacement(self._stops, name, tensor)
            if value is None:
                continue
            if call.op.is_view:
                fresh = torch.empty_like(tensor).copy_(value)
                result = feeds.replace_leaf(result, tensor, fresh)
                self._places.assign(fresh, self._places.place_of(fresh), name)
                tensor = fresh
            else:
                tensor.copy_(value)
            self._cuts.append(weakref.ref(tensor))
        return result

    def _cut_gradients(self) -> None:
        """Let no gradient pass from a fed value to the op whose output it replaced.

        Autograd attaches the op to its output only after we have returned it, so this is done when the next
        op begins.
        """
        waiting: list[weakref.ref[torch.Tensor]] = []
        for reference in self._cuts:
            fed = reference()
            if fed is None:
                continue
            if fed.grad_fn is None:
                waiting.append(reference)
            else:
                feeds.cut_gradient(fed)
        self._cuts = waiting
