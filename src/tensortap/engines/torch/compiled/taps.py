"""Makes nodes of the graphs that compiled code executes, and hands over their summaries.

Names are those an eager run would give: after the module and the operator, counted in the same table, so that
compiled and eager parts of a program are one graph. Only the operators are others, since the compiler takes
many apart: a layer norm is a `var_mean` and some arithmetic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch import devices
from tensortap.engines.torch.compiled.graph import GraphOp, Module, Ref, TappedGraph
from tensortap.engines.torch.first_use import UsedOutside
from tensortap.engines.torch.interceptor import Observation
from tensortap.engines.torch.lines import capture_stack
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.places import Place, Places
from tensortap.engines.torch.program import clean_path, module_holding
from tensortap.records import Frame, Node, Position

__all__ = ["GraphTaps", "Summarised"]

Summarised = Callable[[Sequence[tuple[Node, int, int]], npt.NDArray[np.float64]], None]
"""`summarised(tensors, rows)`: the numeric summaries of a graph, and of which (node, slot, rank) each row is."""


class _Execution:
    """One execution of a graph: the names it got, in the order of its operators."""

    __slots__ = ("callers", "entries", "graph", "inputs", "moved", "nodes", "optimizer", "written")

    def __init__(self, graph: TappedGraph) -> None:
        self.graph = graph
        self.entries: list[NameEntry] = []
        self.nodes: list[Node] = []
        self.inputs: dict[int, str] = {}
        """Names of the graph's arguments, by position."""
        self.moved: dict[str, str] = {}
        """Paths of modules the graph was compiled for, and of those it is executed for now."""
        self.optimizer = ""
        """Scope of the optimizer whose state is among the arguments."""
        self.written: list[tuple[torch.Tensor, NameEntry]] = []
        """Arguments that are overwritten, which the caller owns, and by what."""
        self.callers: tuple[Frame, ...] | None = None


class GraphTaps:
    """The collector of one run.

    Args:
        paths: the path of every module, by identity.
        names: the names of the session.
        places: the tensors of the run that have a name.
        outside: names the tensors that no op of the run has made.
        observation: gets the nodes.
        summarised: gets the summaries.
    """

    def __init__(
        self,
        paths: Mapping[int, str],
        names: RunNames,
        places: Places,
        outside: UsedOutside,
        observation: Observation,
        summarised: Summarised,
    ) -> None:
        self._paths = paths
        self._names = names
        self._places = places
        self._outside = outside
        self._observation = observation
        self._summarised = summarised
        self._parameters: set[str] | None = None
        self._made_by: dict[Place, _Execution] = {}
        self._awaiting_backward: dict[TappedGraph, list[_Execution]] = {}

    # --- the two moments of a graph ----------------------------------------------------------------

    def before(self, graph: TappedGraph, inputs: Sequence[Any]) -> _Execution | None:
        """Name the operators, and the inputs while they still have the values they come with."""
        self._observation.stayed_compiled = True
        try:
            return self._begin(graph, inputs)
        except Exception:
            self._observation.fault("naming a compiled graph")
            return None

    def after(
        self, execution: _Execution | None, outputs: Sequence[Any], rows: npt.NDArray[np.float64]
    ) -> None:
        """Record the nodes and hand their summaries over."""
        if execution is None:
            return
        try:
            self._finish(execution, outputs, rows)
        except Exception:
            self._observation.fault("recording a compiled graph")

    def _begin(self, graph: TappedGraph, inputs: Sequence[Any]) -> _Execution:
        execution = _Execution(graph)
        self._name_known_inputs(execution, inputs)
        forward = execution if graph.forward is None else self._forward_execution(graph, inputs)
        execution.moved = self._moved_modules(graph, execution.inputs)
        for op in graph.ops:
            forward_entry = None if forward is None or op.forward is None else forward.entries[op.forward]
            owner = self._owner(op, execution)
            scope, position = self._scope(op, execution, forward_entry, owner)
            entry = self._names.next(scope, op.op.label)
            entry.position = entry.position or position
            execution.entries.append(entry)
            for ref in op.inputs:
                if ref.kind == "input" and ref.position not in execution.inputs:
                    tensor = inputs[ref.position]
                    place = self._places.place_of(tensor)
                    execution.inputs[ref.position] = self._outside.name_unseen(entry, tensor, place)
            named = (_name(ref, execution, forward) for ref in op.inputs)
            names = tuple(name for name in named if name is not None)
            execution.nodes.append(_node(op, entry, names, forward_entry, execution))
            if owner is not None:
                for slot in range(len(op.outputs)):
                    self._places.owners[entry.tensor(slot)] = owner
        for argument, writer in graph.writes:
            execution.written.append((inputs[argument], execution.entries[writer]))
        return execution

    def _finish(self, execution: _Execution, outputs: Sequence[Any], rows: npt.NDArray[np.float64]) -> None:
        graph, places = execution.graph, self._places
        self._observation.nodes.extend(execution.nodes)
        for tensor, writer in execution.written:
            place = places.place_of(tensor)
            memory = places.memory_at(place)
            if memory is not None:
                memory.version += 1
                memory.writer = writer.name
            places.assign(tensor, place, writer.tensor(0))
        execution.written.clear()
        self._awaiting_backward.setdefault(graph, []).append(execution)
        for ref, tensor in zip(graph.outputs, outputs, strict=True):
            if ref is not None and ref.kind == "op" and isinstance(tensor, torch.Tensor):
                place = places.place_of(tensor)
                places.assign(tensor, place, execution.entries[ref.position].tensor(ref.slot))
                self._made_by[place] = execution
        tapped = [
            (node, slot, len(op.outputs[slot].shape))
            for op, node in zip(graph.ops, execution.nodes, strict=True)
            for slot, _ in op.taps
        ]
        if tapped:
            self._summarised(tapped, rows)

    # --- names ---------------------------------------------------------------------------------------

    def _name_known_inputs(self, execution: _Execution, inputs: Sequence[Any]) -> None:
        for position in execution.graph.arguments:
            name = self._outside.known_name(inputs[position])
            if name is not None:
                execution.inputs[position] = name
                if name.startswith("optimizer/"):
                    execution.optimizer = "/".join(name.split("/")[:2]) + "/"

    def _forward_execution(self, backward: TappedGraph, inputs: Sequence[Any]) -> _Execution | None:
        """The execution whose gradients are to be computed: the one that made what was saved for them."""
        candidates = self._awaiting_backward.get(backward.forward) if backward.forward is not None else None
        if not candidates:
            return None
        chosen = candidates[-1]  # nothing was saved but arguments: passes go backwards in reverse order
        for position in backward.saved:
            made_by = self._made_by.get(self._places.place_of(inputs[position]))
            if made_by is not None and made_by.graph is backward.forward:
                chosen = made_by
                break
        if chosen in candidates and len(candidates) > 1:  # one stays: its gradients may be computed twice
            candidates.remove(chosen)
        return chosen

    def _moved_modules(self, graph: TappedGraph, inputs: Mapping[int, str]) -> dict[str, str]:
        """What must be changed in the paths of modules: PyTorch runs the same code for modules that are alike.

        Twelve equal blocks that are compiled one by one are compiled once, for the first of them. Which one runs
        is told by its parameters.
        """
        if self._parameters is None:
            self._parameters = {f"{path}:0" for path in self._outside.parameter_paths.values()}
        parameters = {position: name for position, name in inputs.items() if name in self._parameters}
        if graph.first_parameters is None:
            graph.first_parameters = parameters
        moved: dict[str, str] = {}
        for position, name in parameters.items():
            then, now = graph.first_parameters.get(position, name).split("/"), name.split("/")
            while then and now and then[-1] == now[-1]:
                then.pop()
                now.pop()
            if then and now:
                moved["/".join(then) + "/"] = "/".join(now) + "/"
        return moved

    def _owner(self, op: GraphOp, execution: _Execution) -> str | None:
        """The one parameter that an operator of an optimizer has to do with."""
        if not execution.optimizer or op.modules:
            return None
        names = (_name(ref, execution, None) for ref in op.inputs)
        owners = {self._places.owners[name] for name in names if name in self._places.owners}
        return owners.pop() if len(owners) == 1 else None

    def _scope(
        self, op: GraphOp, execution: _Execution, forward: NameEntry | None, owner: str | None
    ) -> tuple[str, Position]:
        """The scope of an operator, empty or ending in a slash, and where in the program that is."""
        if forward is not None:
            known = forward.position
            return forward.gradient_scope, Position("backward", None if known is None else known.module)
        path = self._path(op.modules)
        for compiled_for, executed_for in execution.moved.items():
            if path.startswith(compiled_for):
                path = executed_for + path.removeprefix(compiled_for)
                break
        module = path[:-1] or None
        if op.is_gradient:
            return f"gradients/{path}", Position("backward", module)  # of something that ran before this run
        if op.is_recomputed:
            return f"recompute/{path}", Position("forward", module)
        if execution.optimizer and not path:
            if owner is None:
                return execution.optimizer, Position("optimizer")
            return f"{execution.optimizer}{owner}/", Position("optimizer", module_holding(owner))
        return path, Position("forward", module)

    def _path(self, modules: Sequence[Module]) -> str:
        """The scope of the innermost module; one that the session does not know is called after its class."""
        path = ""
        for module in modules:
            known = self._paths.get(module.identity)
            path = f"{path}{clean_path(module.class_name)}/" if known is None else f"{known}/"
        return path


def _name(ref: Ref, execution: _Execution, forward: _Execution | None) -> str | None:
    """The tensor that an operator takes; None if it was not seen being made."""
    if ref.kind == "input":
        return execution.inputs.get(ref.position)
    made_by = execution if ref.kind == "op" else forward
    return None if made_by is None else made_by.entries[ref.position].tensor(ref.slot)


def _node(
    op: GraphOp, entry: NameEntry, inputs: tuple[str, ...], forward: NameEntry | None, execution: _Execution
) -> Node:
    """The node of an operator: the one of an earlier run when nothing about it has changed."""
    if entry.node is None or entry.func is not op or entry.inputs != inputs:
        entry.func, entry.inputs = op, inputs
        entry.code, entry.instruction = None, -1  # an eager run that takes the name again starts anew
        if forward is not None and forward.node is not None:
            stack = forward.node.stack
        else:
            if execution.callers is None:
                execution.callers = _lines_calling_compiled_code()
            stack = execution.callers + op.stack
        phase, module = entry.position or ("", None)
        entry.node = Node(
            name=entry.name,
            op_type=op.op.op_type,
            inputs=inputs,
            outputs=op.outputs,
            device="" if op.device is None else devices.name_of(op.device),
            attributes=op.attributes,
            stack=stack,
            forward=None if forward is None else forward.name,
            is_view=op.op.is_view,
            phase=phase,
            module=module,
        )
    return entry.node


def _lines_calling_compiled_code() -> tuple[Frame, ...]:
    """The user's lines outside the outermost compiled function, from where it was called."""
    frame: FrameType | None = sys._getframe(1)
    outside = None
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper":
            outside = frame
        frame = frame.f_back
    return () if outside is None else capture_stack(outside)
