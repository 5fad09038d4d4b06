"""From the operations of a program to nodes: names, lines, phases, inputs by name."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tensortap.engines.jax.paths import clean_name
from tensortap.engines.jax.program import Argument, Op, Program, Site, Value
from tensortap.engines.observe.names import NameTable
from tensortap.records import Frame, Node, TensorSpec

__all__ = ["VIEWS", "Named", "argument_name", "name_program"]

VIEWS = frozenset(
    [
        "broadcast_in_dim",
        "copy",
        "copy_p",
        "expand_dims",
        "layout_constraint",
        "name",
        "optimization_barrier",
        "reshape",
        "rev",
        "sharding_constraint",
        "squeeze",
        "stop_gradient",
        "transpose",
    ]
)
"""Operations whose result has the elements of what they are given, and no others."""

_RESULT = re.compile(r"^result\b")


@dataclass
class Named:
    """A program whose operations have names.

    Attributes:
        nodes: one for each operation, and one in front for each number that is an operand.
        constants: values of the latter, by name of the node.
        of_op: the node of each operation.
        tensors: the name of each site.
        outputs: names of what it returns; None for what is a plain number.
        wished: what was wanted of it in earlier runs, by what decided that.
    """

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    of_op: list[Node] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)
    outputs: tuple[str | None, ...] = ()
    sites: dict[str, Site] = field(default_factory=dict)
    wished: dict[Any, Any] = field(default_factory=dict)

    @functools.cached_property
    def float_constants(self) -> list[tuple[Node, npt.NDArray[Any], bool]]:
        """Numbers that can be bad: the node, the value, and whether it is good."""
        return [
            (node, value, bool(np.isfinite(value.astype(np.complex128)).all()))
            for node in self.nodes
            if (value := self.constants.get(node.name)) is not None and value.dtype.kind in "fc"
        ]


def argument_name(program: Program, argument: Argument) -> str:
    """What an argument is called that nobody has named."""
    if argument.is_constant:
        return f"constant_{argument.place}"
    names = program.argument_names
    path = names[argument.place] if argument.place < len(names) else ""
    return clean_name(str(path or "")) or f"argument_{argument.place}"


def name_program(
    program: Program,
    arguments: Mapping[Argument, str],
    table: NameTable,
    device: str,
    stack: tuple[Frame, ...] = (),
) -> Named:
    """Give names to the operations of a program.

    Args:
        program: traced.
        arguments: the tensors it is given, by name.
        table: hands out the names of the run.
        device: where it is executed.
        stack: takes the place of the lines of its operations, if it is given.
    """
    named = Named(tensors=[""] * len(program.sites))
    for op in program.ops:
        node = _node(op, named, arguments, table, device, stack)
        named.nodes.append(node)
        named.of_op.append(node)
        for site in op.outs:
            tensor = node.tensor(site.slot)
            named.tensors[site.number] = tensor
            named.sites[tensor] = site
    named.outputs = tuple(_tensor(value, named, arguments) for value in program.outputs)
    _note_updates(program, named, arguments)
    return named


def _note_updates(program: Program, named: Named, arguments: Mapping[Argument, str]) -> None:
    """Note in the nodes that make new state which argument it takes the place of."""
    places = {node.name: place for place, node in enumerate(named.nodes)}
    for place, result in program.updating.items():
        site, before = program.outputs[result], arguments.get(Argument(place))
        if not isinstance(site, Site) or before is None or len(program.ops[site.op].outs) != 1:
            continue
        node = named.of_op[site.op]
        node = replace(node, attributes={**node.attributes, "updates": before})
        named.nodes[places[node.name]] = named.of_op[site.op] = node


def _tensor(value: Value, named: Named, arguments: Mapping[Argument, str]) -> str | None:
    if isinstance(value, Site):
        return named.tensors[value.number]
    return arguments.get(value) if isinstance(value, Argument) else None


def _node(
    op: Op,
    named: Named,
    arguments: Mapping[Argument, str],
    table: NameTable,
    device: str,
    stack: tuple[Frame, ...],
) -> Node:
    belongs_to = None if op.forward is None else named.of_op[op.forward].name
    if op.is_backward:
        scope = f"gradients/{belongs_to}/" if belongs_to else f"gradients/{op.scope}"
        phase = "backward"
    else:
        scope = op.scope
        phase = "optimizer" if op.is_optimizer else "forward"
    name = table.next(scope, op.primitive).name
    return Node(
        name,
        op.primitive if any(isinstance(each, (Site, Argument)) for each in op.inputs) else "constant",
        _inputs(op, name, named, arguments, device),
        (),
        tuple(site.spec for site in op.outs),
        device,
        op.attributes,
        stack or op.stack,
        belongs_to,
        op.primitive in VIEWS,
        phase,
        op.scope.rstrip("/") or None,
    )


def _inputs(
    op: Op, name: str, named: Named, arguments: Mapping[Argument, str], device: str
) -> tuple[str, ...]:
    """Names of the inputs. A number in front of a tensor becomes a node, so that places are those of the operands."""
    found: list[str] = []
    names = [_tensor(value, named, arguments) for value in op.inputs]
    last = max((place for place, each in enumerate(names) if each is not None), default=-1)
    seen: set[str] = set()
    for place, tensor in enumerate(names):
        if tensor is None and place < last:
            tensor = _constant(op.inputs[place], f"{name}/operand_{place}", named, device, op)
        if tensor is not None and not (op.primitive in ("scan", "while", "cond") and tensor in seen):
            seen.add(tensor)
            found.append(tensor)
    return tuple(found)


def _constant(value: Any, name: str, named: Named, device: str, op: Op) -> str | None:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # a key of a random generator
        return None
    spec = TensorSpec(array.dtype.name, array.shape)
    node = Node(name, "Const", outputs=(spec,), device=device, stack=op.stack, phase="input")
    named.nodes.append(node)
    named.constants[name] = array
    return node.tensor(0)


def output_paths(program: Program) -> Sequence[str]:
    """Paths of what a program returns, without what stands for the whole."""
    info = program.closed.jaxpr.debug_info
    paths = getattr(info, "result_paths", None) or ()
    return [_RESULT.sub("", str(path or "")) for path in paths]
