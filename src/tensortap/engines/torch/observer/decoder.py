"""What the observer asks Python for, once for everything new: names, nodes, source lines, what is watched.

The observer knows operators, scopes, names ("entries"), nodes and values by number. A decoder keeps what the
numbers mean; there is one for each name table, so numbers stay valid for a session. Methods without an underscore
are called by the observer, in the middle of an op, with its own work hidden from itself.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch import devices, lines
from tensortap.engines.torch.interceptor import Observation, RunPlan
from tensortap.engines.torch.lines import stack_of
from tensortap.engines.torch.memory import asking_no_class, held_in, in_place_of, shows_its_ops
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.observer import library as native
from tensortap.engines.torch.observer.installation import Installation
from tensortap.engines.torch.observer.known import KnownSources
from tensortap.engines.torch.observer.lanes import Lanes
from tensortap.engines.torch.outside import Outside, constant_position, hidden_view_node
from tensortap.engines.torch.program import Program, module_holding, variable_node
from tensortap.engines.torch.schema import UNINITIALISED, Op, op_of
from tensortap.engines.torch.tensors import TENSORS
from tensortap.engines.torch.values import spec_of
from tensortap.records import Node, Position, TensorSpec
from tensortap.seam.graph import merged_attributes
from tensortap.sink.queue import shared_queue

__all__ = ["Decoder"]

MAX_AGE_SECS = 0.05
_SLOT_BITS = 20
_RUNS_REMEMBERED = 8  # that a program goes through in turn, such as rollouts and updates
_PLANS_KEPT = 16  # as many as watch plans
_OUTSIDE_OF_MODULES = Position("forward")
_SLOT_MASK = (1 << _SLOT_BITS) - 1


class _Found:
    """A value that has a name: what `Outside` needs to know of it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Run:
    """What belongs to one observed run."""

    def __init__(
        self,
        decoder: Decoder,
        plan: RunPlan,
        program: Program,
        observation: Observation,
        lanes: Lanes,
    ) -> None:
        self.plan = plan
        self.program = program
        self.observation = observation
        self.outside = Outside(program, decoder, decoder, observation, _never_used)  # type: ignore[arg-type]
        self.outside.owners = _Owners(decoder)
        self.lanes = lanes
        self.failed: tuple[Node, CodeType, int] | None = None


class _Owners(dict[str, str]):
    """Which parameter a tensor has to do with, within an optimizer: the observer wants to know by number."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def __setitem__(self, name: str, path: str) -> None:
        self._decoder.set_owner(name, path)


def _never_used(name: str, node: Node, tensor: torch.Tensor) -> None:
    raise AssertionError("the observer itself notices when a source is used")


def _flush(decoder: weakref.ref[Decoder]) -> None:
    found, queue = decoder(), shared_queue()
    if found is None:
        return
    # This is the thread of the queue: if it has much to do, it must not wait for itself to have less.
    if queue.pending_bytes < queue.max_bytes // 2:
        found.flush_is_due()
    else:
        queue.call_later(MAX_AGE_SECS, partial(_flush, decoder))


class Decoder:
    """Gives meaning to the numbers of one observer."""

    def __init__(self, names: RunNames) -> None:
        self.library = native.library()
        self._names = names
        self._operators: list[Op] = []
        self._scopes: dict[str, int] = {}
        self._scope_names: list[str] = []
        self._positions: list[Position] = []
        """Where in the program each scope is."""
        self._labels: dict[str, int] = {}
        self._label_names: list[str] = []
        self._owner_numbers: dict[str, int] = {"": 0}
        self._owner_paths: list[str] = [""]
        self._entries: list[NameEntry] = []
        self._nodes: list[Node] = []
        self._nodes_made = 0
        self._executed_lately: dict[bytes, list[Node]] = {}
        self._executed_made = 0  # of how many nodes it knows
        self._source_entries: dict[str, int] = {}
        self._source_nodes: dict[str, int] = {}
        self._values: dict[str, int] = {}
        self._parameter_paths: list[str] = []
        self._attributes: Mapping[str, Any] = {}  # of the call whose node will have to be built
        self._first_device: torch.device | None = None  # of its first tensor
        self._written_places: Mapping[int, int] = {}
        self._device_names: dict[torch.device, str] = {}  # for one run: the rank may come to be known later
        self._plans: OrderedDict[Any, Lanes] = OrderedDict()
        self._codes = lines.classifications()
        self._run: _Run | None = None
        self._known = KnownSources(self)
        self._flush_is_due = False
        self._installation: Installation | None = None
        self.handle = self.library.tt_new(
            self,
            ctypes.cast(native.dtype_codes(), ctypes.c_void_p),
            native.summary_address(),
            self.label("const"),
            self.label("as_strided"),
        )
        self.scope("")  # is number 0
        self.shared = native.Scope.from_address(self.library.tt_scope(self.handle))

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle is not None:
            self.release()
            self.library.tt_delete(handle)

    @property
    def is_busy(self) -> bool:
        """Whether a run is being observed already: the program runs its session inside of itself."""
        return self._run is not None

    def inherit(self, other: Decoder) -> None:
        """Take over the bad values that have outlived the runs of another decoder, under their names there."""
        entries: dict[str, int] = {}
        values = []
        for value in self.library.tt_survivors(other.handle):
            name = other._entries[value >> _SLOT_BITS].name
            if name not in entries:
                entries[name] = self.library.tt_reserve_entry(self.handle)
                self._entries[entries[name] :] = [NameEntry(name)]
            values.append(entries[name] << _SLOT_BITS | value & _SLOT_MASK)
        if values:
            self.library.tt_inherit(self.handle, other.handle, values)

    # --- one run -----------------------------------------------------------------------------------

    @contextmanager
    def recording(self, plan: RunPlan, program: Program, observation: Observation) -> Iterator[None]:
        """Observe the block, and leave its nodes in the observation."""
        self._names.start_run()
        lanes = self.plan_for(plan)
        emits = bool(plan.taps or plan.captures or plan.watching is not None)
        keep_bad = 0 if plan.watching is None else plan.watching.bad.limit
        session = self.library.tt_begin(self.handle, lanes.handle, emits, keep_bad)
        if plan.watching is not None:
            self.library.tt_set_index(self.handle, plan.watching.publisher.info.index)
        if plan.traced:
            self.library.tt_trace(self.handle)
        if plan.limits is not None:
            most = plan.limits
            self.library.tt_limit(self.handle, most.nodes, most.new, most.outside)
        try:
            run = self._run = _Run(self, plan, program, observation, lanes)
            run.lanes.open(self.handle)
            self._values.clear()
            self._device_names.clear()
            if self._codes != lines.classifications():
                self._codes = lines.classifications()
                self.library.tt_forget_codes(self.handle)
            with self._installed(plan, program):
                self.library.tt_start(self.handle, session)
                try:
                    yield
                finally:
                    self.library.tt_stop(self.handle, session)
        except BaseException as error:
            observation.failed = self._failure(error)
            raise
        finally:
            observation.nodes[:] = self._executed()
            self._tell_of_bad(observation)
            observation.unrecorded = self.library.tt_unrecorded(self.handle)
            if plan.traced:
                nbytes = 40 * self.library.tt_execution_count(self.handle)
                observation.executions += ctypes.string_at(self.library.tt_executions(self.handle), nbytes)
            self.library.tt_end(self.handle, session)
            self._run = None

    def _tell_of_bad(self, observation: Observation) -> None:
        gone, arrivals = self.library.tt_bad_values(self.handle)
        observation.gone += map(self._tensor_name, gone)
        observation.came_from.update(
            (self._tensor_name(value), (run, self._tensor_name(origin))) for value, run, origin in arrivals
        )

    @contextmanager
    def _installed(self, plan: RunPlan, program: Program) -> Iterator[None]:
        """Have PyTorch tell of this run, and know the tensors that are there before it."""
        installation = self._installation
        if installation is not None and not installation.is_for(program):
            self.release()
            installation = None
        try:
            with program.held_still():
                self._known.name_all(program, self._current.outside, plan.inputs, installation is not None)
                if installation is None:
                    installation = self._installation = Installation(program, self)
                installation.fit(self._known.version)
                self._known.remember(program)
            yield
        finally:
            if installation is not None:
                installation.scopes.forget()
            if not plan.stays_installed:
                self.release()

    def release(self) -> None:
        """Leave PyTorch as it was, if something has stayed installed there after a run."""
        installation, self._installation = self._installation, None
        if installation is not None:
            installation.remove()

    def release_here(self) -> None:
        """The same, if it was installed for this thread."""
        if self._installation is not None and self._installation.is_here():
            self.release()

    def _executed(self) -> list[Node]:
        """The nodes of the run; for a program that repeats itself, from memory."""
        count = self.library.tt_node_count(self.handle)
        if not count:
            return []
        numbers = ctypes.string_at(self.library.tt_nodes(self.handle), 4 * count)
        if self._executed_made != self._nodes_made or len(self._executed_lately) > _RUNS_REMEMBERED:
            self._executed_made = self._nodes_made
            self._executed_lately.clear()
        nodes = self._executed_lately.get(numbers)
        if nodes is None:
            nodes = [self._nodes[number] for number in memoryview(numbers).cast("i")]
            self._executed_lately[numbers] = nodes
        return nodes

    def plan_for(self, plan: RunPlan) -> Lanes:
        """What the observer knows already of runs that are watched like this one."""
        keys = None if plan.watching is None else plan.watching.publisher.keys
        known = (id(keys), plan.captures, bool(plan.taps))
        found = self._plans.pop(known, None) or Lanes(self.library, keys)
        self._plans[known] = found
        if len(self._plans) > _PLANS_KEPT:
            self._plans.popitem(last=False)
        return found

    def announce_modules(self, paths: Mapping[int, str]) -> None:
        """Tell the observer what the modules of the program are called."""
        announce, handle = self.library.tt_add_module, self.handle
        for module, path in paths.items():
            announce(handle, module, self.scope(path + "/", Position("forward", path)))

    def in_place_of(self, wrapper: torch.Tensor) -> torch.Tensor:
        """What the gradient of a parameter is known by."""
        seen = in_place_of(wrapper)
        return wrapper if seen is None else seen

    @asking_no_class
    def announce_parameters(self, program: Program) -> None:
        """Tell the observer what the gradients of the parameters are called."""
        announce, handle = self.library.tt_add_parameter, self.handle
        del self._parameter_paths[:]
        for path, parameter in program.parameters():
            if parameter.requires_grad and parameter.is_leaf:
                parent, _, leaf = f"gradients/{path}".rpartition("/")
                position = Position("backward", module_holding(path))
                scope, label = self.scope(parent + "/", position), self.label(leaf)
                number, inner = len(self._parameter_paths), self.scope(f"gradients/{path}/", position)
                announce(handle, parameter._cdata, number, scope, label, inner)
                self._parameter_paths.append(path)

    def _failure(self, error: BaseException) -> tuple[BaseException, Node] | None:
        """The node that raised an exception: the last one that failed, if it did so where the exception began."""
        failed, traceback = None if self._run is None else self._run.failed, error.__traceback__
        if failed is None or traceback is None:
            return None
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
        node, code, instruction = failed
        began_there = traceback.tb_frame.f_code is code and traceback.tb_lasti == instruction
        return (error, node) if began_there else None

    @property
    def _current(self) -> _Run:
        assert self._run is not None
        return self._run

    # --- numbers -----------------------------------------------------------------------------------

    def scope(self, name: str, position: Position = _OUTSIDE_OF_MODULES) -> int:
        """The number of a scope, which is empty or ends in a slash, and is somewhere in the program."""
        number = self._scopes.get(name)
        if number is None:
            number = self._scopes[name] = len(self._scope_names)
            self._scope_names.append(name)
            self._positions.append(position)
        return number

    def label(self, name: str) -> int:
        """The number of the last part of names."""
        number = self._labels.get(name)
        if number is None:
            number = self._labels[name] = len(self._label_names)
            self._label_names.append(name)
        return number

    def owner(self, path: str) -> int:
        """The number of a parameter that something within an optimizer has to do with."""
        number = self._owner_numbers.get(path)
        if number is None:
            number = self._owner_numbers[path] = len(self._owner_paths)
            self._owner_paths.append(path)
        return number

    def set_owner(self, name: str, path: str) -> None:
        """Note that a tensor of this run has to do with a parameter."""
        self.library.tt_set_owner(self.handle, self._values[name], self.owner(path))

    def source_numbers(self, name: str) -> tuple[int, int]:
        """NameEntry and node of something that is no op; -1 for what has no name yet."""
        return self._source_entries.get(name, -1), self._source_nodes.get(name, -1)

    def _device_name(self, device: torch.device) -> str:
        name = self._device_names.get(device)
        if name is None:
            name = self._device_names[device] = devices.name_of(device)
        return name

    def _tensor_name(self, value: int) -> str:
        entry = self._entries[value >> _SLOT_BITS]
        slot = value & _SLOT_MASK
        return entry.tensor(slot) if slot else entry.tensor_0

    def _keep(self, reused: int, node: Node) -> int:
        self._nodes_made += 1
        if reused >= 0:
            self._nodes[reused] = node
            self.library.tt_node_changed(self.handle, reused)
            return reused
        self._nodes.append(node)
        return len(self._nodes) - 1

    # --- for `Outside`: names and places, as it knows them ----------------------------------------

    def next(self, scope: str, label: str) -> NameEntry:
        """The entry of the next thing called `label` in `scope`."""
        number: int = self.library.tt_next(self.handle, self.scope(scope), self.label(label))
        return self._entries[number]

    def source(self, name: str, spec: TensorSpec) -> Node | None:
        """A node that was kept for something that is no op."""
        return self._names.source(name, spec)

    def keep_source(self, node: Node) -> None:
        """Keep a source's node."""
        self._names.keep_source(node)

    def place_of(self, tensor: torch.Tensor) -> None:
        """The observer works out places itself."""

    def find(self, tensor: torch.Tensor) -> _Found | None:
        """The name of a tensor's value, if it has one."""
        seen = in_place_of(tensor)
        value = self.library.tt_find(self.handle, (tensor if seen is None else seen)._cdata)
        if value < 0:
            return None
        name = self._tensor_name(value)
        self._values[name] = value
        return _Found(name)

    def assign(self, tensor: torch.Tensor, place: None, name: str, node: Node) -> None:
        """Make a source known, to become a node when it is first used."""
        entry = self._source_entries.get(node.name)
        if entry is None:
            entry = self.library.tt_reserve_entry(self.handle)
            self._entries[entry:] = [NameEntry(node.name)]
            self._source_nodes[node.name] = self._keep(-1, node)
            self._source_entries[node.name] = entry
        number = self._source_nodes[node.name]
        known = self._nodes[number]
        if known is not node:
            if known.outputs[0].dtype == node.outputs[0].dtype and known.device == node.device:
                self._nodes[number] = node  # of another shape, which changes nothing of what is watched
                self._nodes_made += 1
            else:
                self._keep(number, node)
        self._values[name] = entry << _SLOT_BITS
        seen = in_place_of(tensor)
        known_by = tensor if seen is None else seen
        if not self.library.tt_add_source(self.handle, known_by._cdata, entry, number):
            self.fault("naming a tensor", name)

    # --- operators, scopes, entries ---------------------------------------------------------------------

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
            self.label(op.label),
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

    def tensor_class(self, tensor: torch.Tensor) -> tuple[bool, str | None]:
        """Of a wrapper's class: whether its ops are seen as those on what it wraps, and where it holds that."""
        return shows_its_ops(tensor), held_in(type(tensor))

    def classify(self, code: CodeType) -> int:
        """Whose code it is."""
        return lines.kind_of(code)

    def new_entry(self, entry: int, scope: int, label: int, number: int) -> None:
        """Name a new entry. (Placed by its number: an interrupt may have come between two of them.)"""
        named = self._names.entry(self._scope_names[scope], self._label_names[label], number)
        named.position = named.position or self._positions[scope]
        self._entries[entry:] = [named]

    def inner_scope(self, entry: int) -> int:
        """The scope of what an op brings along: constants, hidden views."""
        named = self._entries[entry]
        return self.scope(named.name + "/", named.position or _OUTSIDE_OF_MODULES)

    def gradient_scope(self, entry: int) -> int:
        """The scope of the gradient of an op."""
        named = self._entries[entry]
        module = None if named.position is None else named.position.module
        return self.scope(named.gradient_scope, Position("backward", module))

    def stray_scope(self, name: str) -> int:
        """The scope of the gradient of an op that ran before this run."""
        return self.scope(f"gradients/{name}/", Position("backward"))

    def leaf_scope(self, value: int) -> int:
        """The scope of adding to the gradient of a leaf that is no parameter."""
        path = "leaf" if value < 0 else self._tensor_name(value).rpartition(":")[0]
        return self.scope(f"gradients/{path}/", Position("backward", module_holding(path)))

    def owner_scope(self, scope: int, owner: int) -> int:
        """The scope of what an optimizer does with one parameter."""
        path = self._owner_paths[owner]
        return self.scope(f"{self._scope_names[scope]}{path}/", Position("optimizer", module_holding(path)))

    def step_in(self, scope: str, frame: FrameType | None) -> None:
        """Tell the observer which optimizer steps (none: without a frame), and how to know that it has left."""
        self.shared.in_optimizer = frame is not None
        self.shared.scope = self.scope(scope, Position("optimizer")) if scope else 0
        self.library.tt_step_in_frame(self.handle, frame)

    def unknown_module(self, module: nn.Module, parent: int) -> int:
        """The scope of a module that the program was not known to have."""
        above = self._scope_names[parent].removeprefix("recompute/")
        path = self._current.program.path_of_unknown(module, above)
        return self.scope(f"{path}/", Position("forward", path))

    def recomputed_scope(self, scope: int) -> int:
        """The scope of a module that the backward pass calls again."""
        return self.scope(f"recompute/{self._scope_names[scope]}", self._positions[scope])

    def enter_root(self, scope: int, module: nn.Module, args: Any) -> None:
        """A module is called from outside all modules: name what it is given."""
        self.name_module_inputs(self._scope_names[scope][:-1], module, args)

    def name_module_inputs(self, path: str, module: nn.Module, args: Any) -> None:
        """Name what a module is given from outside."""
        self._current.outside.name_module_inputs(path, module, args)

    def name_optimizer_state(self, scope: str, optimizer: Optimizer) -> None:
        """Name the state of an optimizer that begins to step."""
        self._known.name_state(self._current.outside, scope, optimizer)

    def optimizer_left(self) -> None:
        """The step of an optimizer is no longer on the stack: it raised, and the program went on."""
        if self._installation is not None:
            self._installation.scopes.forward_scope()
            self._installation.scopes.publish()

    def find_new_state(self) -> bool:
        """Look again for state that the running optimizer has made in this very step."""
        return self._current.outside.has_new_state()

    # --- nodes ---------------------------------------------------------------------------------------------

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
        self._nodes[node] = replace(known, attributes=attributes)
        self._nodes_made += 1

    def shapes_vary(self, node: int, outputs: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
        """Shapes of outputs keep changing: have the node say so. For each output, its varying dimensions as bits."""
        known = self._nodes[node]
        specs = tuple(a.merged_with(spec_of(b)) for a, b in zip(known.outputs, outputs, strict=True))
        self._nodes[node] = replace(known, outputs=specs)
        self._nodes_made += 1
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
        """Build the node of a finished call. `known` is a node that differs in outputs and inputs only."""
        node = self._node(operator, entry, known, forward, inputs, controls, outputs)
        self._entries[entry].node = node
        return self._keep(reused, node)

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
        observation = self._current.observation
        specs = tuple([spec_of(tensor) for tensor in outputs])
        if known >= 0:
            like = self._nodes[known]
            where = self._device_name(outputs[0].device) if outputs else like.device
            return replace(self._with_inputs(like, inputs, controls), outputs=specs, device=where)
        device = outputs[0].device if outputs else self._first_device
        entries = self._entries
        forward_node = entries[forward].node if forward >= 0 else None
        stack = stack_of(sys._getframe(1).f_back)  # none on a thread that runs no Python
        if stack.ran_compiled:
            observation.ran_compiled = True
        phase, module = entries[entry].position or ("", None)
        return Node(
            entries[entry].name,
            op.op_type,
            tuple([self._tensor_name(each) for each in inputs]),
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
        node = self._entries[entry].node = self._with_inputs(self._nodes[like], inputs, controls)
        self._nodes_made += 1
        if reused < 0:
            self._nodes.append(node)
            return len(self._nodes) - 1
        self._nodes[reused] = node
        return reused

    def _with_inputs(self, like: Node, inputs: tuple[int, ...], controls: tuple[int, ...]) -> Node:
        # Not by `replace`, and with few calls: loops that grow make thousands of these in every run.
        entries = self._entries
        return Node(
            like.name,
            like.op_type,
            tuple(
                [
                    self._tensor_name(each) if each & _SLOT_MASK else entries[each >> _SLOT_BITS].tensor_0
                    for each in inputs
                ]
            ),
            tuple([entries[each].name for each in controls]) if controls else (),
            like.outputs,
            like.device,
            like.attributes,
            like.stack,
            like.forward,
            like.is_view,
            like.phase,
            like.module,
            like.writes,
        )

    def failed(
        self,
        operator: int,
        entry: int,
        known: int,
        forward: int,
        inputs: tuple[int, ...],
        controls: tuple[int, ...],
    ) -> None:
        """An op raised: keep its node, and where the exception will say it began."""
        node = self._node(operator, entry, known, forward, inputs, controls, ())
        caller = sys._getframe().f_back
        if caller is not None:
            self._current.failed = (node, caller.f_code, caller.f_lasti)

    def limit_reached(self) -> None:
        """The run has become too long: what follows is only counted."""
        limits = self._current.plan.limits
        if limits is not None:
            limits.reached = True

    def failure_was_caught(self) -> None:
        """The program goes on after an op raised: what it raises later is something else."""
        self._current.failed = None

    def constant(self, entry: int, reused: int, tensor: torch.Tensor) -> int:
        """Build the node of a tensor that came from nowhere."""
        named, device = self._entries[entry], self._device_name(tensor.device)
        node = variable_node(named.name, tensor, "Const", device, constant_position(named.position))
        return self._keep(reused, node)

    def hidden_view(self, entry: int, reused: int, root: int, writer: int, tensor: torch.Tensor) -> int:
        """Build the node of a view that was made where nobody could see it."""
        last_writer = None if writer < 0 else self._entries[writer].name
        named = self._entries[entry]
        node = hidden_view_node(named.name, self._tensor_name(root), last_writer, tensor, named.position)
        return self._keep(reused, node)

    def gradient(self, entry: int, reused: int, value: int, tensor: torch.Tensor, parameter: int) -> int:
        """Build the node of the complete gradient of a parameter."""
        node = Node(
            self._entries[entry].name,
            "AccumulateGrad",
            () if value < 0 else (self._tensor_name(value),),
            outputs=(spec_of(tensor),),
            device=self._device_name(tensor.device),
            forward=self._parameter_paths[parameter],
            is_view=True,
            phase="backward",
            module=module_holding(self._parameter_paths[parameter]),
        )
        return self._keep(reused, node)

    # --- values --------------------------------------------------------------------------------------------

    def taps(self, node: int, slot: int) -> tuple[int, ...]:
        """What to do with an output: pairs of a lane and a key."""
        run = self._current
        return run.lanes.taps(run.plan, self._nodes[node], slot, self.handle)

    def tap(self, number: int, slot: int, tensor: torch.Tensor) -> None:
        """Show a tensor that the observer cannot read itself, or that Python wants to see."""
        run, node = self._current, self._nodes[number]
        name = node.tensor(slot)
        if name in run.plan.captures:
            run.observation.capture(TENSORS, name, tensor)
        for tap in run.plan.all_taps:
            try:
                tap(node, slot, tensor)
            except Exception:
                run.observation.fault(f"tapping {name!r}")

    def wants_bad(self, number: int, kinds: int) -> bool:
        """Whether the values are wanted of a node that has made such bad ones of good ones."""
        watching = self._current.plan.watching
        assert watching is not None
        return watching.bad.wants(self._nodes[number], kinds)

    def made_bad(
        self,
        number: int,
        outputs: tuple[torch.Tensor, ...],
        values: tuple[int, ...],
        tensors: tuple[torch.Tensor | None, ...],
        began: int,
    ) -> None:
        """Have the values recorded of a node that has made a bad one of good ones."""
        watching = self._current.plan.watching
        assert watching is not None
        names = (self._tensor_name(value) for value in values)
        watching.bad.keep(self._nodes[number], outputs, zip(names, tensors, strict=True), began)

    def without_data(self, node: int, slot: int) -> None:
        """Note a tensor whose memory had been freed."""
        self._current.observation.without_data.add(self._nodes[node].tensor(slot))

    def flush(
        self,
        lane: int,
        rows: int,
        count: int,
        rows_size: int,
        data: int,
        used: int,
        data_size: int,
        muted: int,
        bad: bool,
    ) -> None:
        """Take over two blocks of records, with what is used of them; whether one tells of a bad value."""
        # Wrapped before anything can fail, so that the memory is given back in any case.
        free = self.library.tt_free_block
        owned_rows = native.owned_memory(rows, count * 96, free, rows, rows_size)
        owned_data = native.owned_memory(data, used, free, data, data_size)
        self.take(lane, owned_rows, owned_data, muted, bad)

    def take(self, lane: int, rows: Any, data: Any, muted: int, bad: bool) -> None:
        """Take over records that nobody else has any more."""
        run = self._current
        assert run.plan.watching is not None
        if muted:
            run.lanes.count_muted(run.plan.watching, lane, muted)
        if len(rows):
            run.lanes.hand_over(run.plan.watching, lane, rows, data, bad)

    def flush_later(self) -> None:
        """Have the records gathered so far handed over soon, even if the program hangs in its next op.

        Small runs come and go before that time is over; one appointment is enough for all of them.
        """
        if not self._flush_is_due:
            self._flush_is_due = True
            shared_queue().call_later(MAX_AGE_SECS, partial(_flush, weakref.ref(self)))

    def flush_is_due(self) -> None:
        """Hand over what the present run has gathered, called by another thread."""
        self._flush_is_due = False
        if not self.library.tt_flush(self.handle):  # its thread was at work: nothing hangs, so far
            self.flush_later()

    def fault(self, where: str, what: str) -> None:
        """Count a failure of the observer."""
        if self._run is not None:
            self._run.observation.fault(f"{where} ({what})")
