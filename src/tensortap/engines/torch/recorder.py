"""Turns the ops of one run into named nodes, and hands their values to whoever asked.

For every op, in order:
1. `before`: look up which nodes made its inputs, find scope and name, tap inputs that come from outside;
2. the op runs;
3. `after`: apply feeds, name the outputs, build the node (or find it unchanged), tap the outputs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from tensortap.engines.torch.attribution import Attribution
from tensortap.engines.torch.call_nodes import CallNodes
from tensortap.engines.torch.calls import Call
from tensortap.engines.torch.feeds import FeedError, Feeding
from tensortap.engines.torch.first_use import UsedOutside
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.lines import first_user_frame
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.places import DTYPE, Content, Place, Places
from tensortap.engines.torch.program import Program
from tensortap.engines.torch.schema import Op
from tensortap.engines.torch.scopes import Scopes
from tensortap.engines.torch.shown import NOTHING_WRITTEN, Shown
from tensortap.errors import DeadlineExceededError
from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.engines.observe.watching import Watching
    from tensortap.engines.torch.compiled import GraphTaps

__all__ = ["Recorder"]


class Recorder:
    """The record of one run in the making. This is the hot path: it runs once for every op."""

    def __init__(self, plan: RunPlan, program: Program, names: RunNames, observation: Observation) -> None:
        self._plan = plan
        self._program = program
        self._names = names
        self._observation = observation
        self._nodes = observation.nodes
        self._places = places = Places()
        self._shown = Shown(plan, names, places, observation)
        self._feeding = Feeding(plan, observation)
        self._call_nodes = CallNodes(observation, plan.stays_compiled)
        self._outside = UsedOutside(program, names, places, observation, self._record_source)
        self.scopes = Scopes(
            program,
            self._outside.name_module_inputs,
            self._outside.name_optimizer_state,
            around_compiled=plan.stays_compiled,
        )
        self._attribution = Attribution(self.scopes, self._outside, places)
        self.enter_wrapper = self._attribution.enter_wrapper
        self.failed_node = self._call_nodes.of_failed
        names.start_run()
        names.is_unwritten = places.is_unwritten

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Name what is known before the run, and let go of everything after it."""
        try:
            self._outside.name_what_is_known(self._plan.inputs)
            yield
        finally:
            self._shown.see_off_bad()
            self._places.release()
            self._feeding.release()

    def leaves_out(self) -> bool:
        """Whether the run has become too long for the next op to be recorded; then it is counted."""
        limits = self._plan.limits
        if limits is None:
            return False
        if not limits.reached:
            built, has_called_modules = self._call_nodes.built, self.scopes.has_called_modules
            limits.reached = limits.are_over(len(self._nodes), built, has_called_modules)
        self._observation.unrecorded += limits.reached
        return limits.reached

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
                self._shown.arrived(memory, origin.name, tensor)
            if origin.version != memory.version and memory.writer is not None:
                control.append(memory.writer)
            names.append(origin.name)
        call.frame = first_user_frame(sys._getframe(2))
        scope, call.forward, call.owner = self._attribution.scope(names)
        call.entry = entry = self._names.next(scope, op.label)
        if entry.position is None:
            entry.position = self._attribution.position(call)
        for position, place in unseen:
            names[position] = self._outside.name_unseen(entry, call.tensors[position], place)
        call.inputs = tuple(names)
        call.control = tuple(dict.fromkeys(control)) if control else ()
        self._feeding.before(call)
        self._attribution.note_autograd_nodes(op, call)
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
        written: Mapping[int, torch.Tensor] = NOTHING_WRITTEN
        if op.writes:
            written = {id(each): each for each in op.written(call.args, call.kwargs)}
            if len(outputs) != 1 or len(written) != 1 or id(outputs[0]) not in written:
                returned = {id(each) for each in outputs}
                outputs.extend(each for key, each in written.items() if key not in returned)
        result = self._feeding.feed_outputs(call, result, outputs)
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
                places.owners[name] = call.owner
        node = self._call_nodes.of(call, outputs, made)
        self._nodes.append(node)
        self._shown.outputs(call, node, outputs, made, written)
        return self._feeding.replace_outputs(call, result, outputs, places)

    def _record_source(self, name: str, node: Node, tensor: torch.Tensor) -> None:
        self._nodes.append(node)
        self._shown.source(name, node, tensor)
        self._feeding.source(name, node, tensor)

    # --- complete gradients ------------------------------------------------------------------------

    def on_gradient(self, path: str, parameter: torch.Tensor) -> None:
        """Make a node of the complete gradient of a parameter."""
        try:
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                self._record_gradient(path, parameter)
        except FeedError:
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
        self._feeding.feed_gradient(name, gradient)
        node = self._call_nodes.of_gradient(entry, path, gradient, place, inputs)
        self._places.assign(gradient, place, name)
        self._nodes.append(node)
        self._shown.show(name, node, 0, gradient)
        self._feeding.replace_gradient(name, gradient)

    # --- compiled code -----------------------------------------------------------------------------

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
