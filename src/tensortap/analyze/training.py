"""What of a run is training: the gradient of each parameter, the operations that update it, the loss.

Engines that follow a backward pass make a node for every complete gradient (`AccumulateGrad`). In a graph that was
written down before it ran, gradients are what the updates of an optimizer are given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tensortap.analyze.vocabulary.canonical import BEGINS_BACKWARD
from tensortap.phases import SOURCES, forward_names, is_variable, parameter_of_gradient
from tensortap.records import Node, split_tensor_name

if TYPE_CHECKING:
    from tensortap.analyze.graph_facts import GraphFacts
    from tensortap.analyze.run_facts import RunFacts

__all__ = ["forward_by_name", "gradients_of", "losses_of", "updates_of", "variable_behind"]

_FARTHEST = 500
_STEPS = ("assign_sub", "assign_add")
_ROOT = re.compile(r"(?:^|/)grad_ys_\d+$")
_LOSS = re.compile(r"(?:^|[/_])(?:loss|cost)(?:_\d+)?(?:/value)?$", re.IGNORECASE)


def variable_behind(facts: GraphFacts, tensor: str) -> str | None:
    """The variable whose value, or handle, a tensor is; None if it is something else."""
    found = None
    for _ in range(_FARTHEST):
        node = facts.node_of(tensor)
        if node is None:
            break
        if is_variable(node.op_type):
            found = node.name
        elif not facts.is_view(node):
            break
        if not node.inputs:
            break
        tensor = node.inputs[0]
    return found


def updates_of(facts: RunFacts) -> dict[str, list[Node]]:
    """The operations that change each variable without showing what they make of it."""
    found: dict[str, list[Node]] = {}
    for name, op_type in facts.op_types.items():
        operation = facts.operation_named(op_type)
        if "variable" in operation.inputs:
            node = facts.nodes[name]
            variable = variable_behind(facts, node.inputs[operation.place_of("variable")])
            if variable is not None:
                found.setdefault(variable, []).append(node)
    return found


def gradients_of(facts: RunFacts) -> dict[str, str]:
    """The tensors of complete gradients, by the parameter they belong to; of several, the first."""
    found: dict[str, str] = {}
    for name, op_type in facts.op_types.items():
        if op_type == "AccumulateGrad":
            found.setdefault(parameter_of_gradient(facts.nodes[name]), f"{name}:0")
    for variable, nodes in facts.updates.items():
        for node in nodes:
            gradient = _gradient_given(facts, node)
            if gradient is not None:
                found.setdefault(variable, gradient)
    return found


def _gradient_given(facts: RunFacts, update: Node) -> str | None:
    operation = facts.operation(update)
    if operation.updates:
        place = operation.place_of("gradient")
        return update.inputs[place] if place < len(update.inputs) else None
    if operation.name not in _STEPS or len(update.inputs) < 2:
        return None
    # An optimizer made of plain operations: what of the backward pass goes into its step.
    return _only(_first_of_backward(facts, update.inputs[operation.place_of("step")]))


def _first_of_backward(facts: RunFacts, tensor: str) -> Iterable[str]:
    pending, seen = [tensor], {tensor}
    while pending and len(seen) < _FARTHEST:
        each = pending.pop()
        node = facts.node_of(each)
        if node is None or node.op_type in SOURCES:
            continue
        if facts.phase(node.name) == "backward":
            yield each
            continue
        further = [taken for taken in node.inputs if taken not in seen]
        seen.update(further)
        pending += further


def losses_of(facts: RunFacts) -> list[str]:
    """The tensors from which the backward pass began, or else what is called a loss; likely ones first."""
    begun: list[str] = []
    rooted: list[str] = []
    for name, op_type in facts.op_types.items():
        if facts.operation_named(op_type).name == BEGINS_BACKWARD:
            if facts.phase(name) not in ("backward", "optimizer"):
                begun += facts.nodes[name].inputs[:1]
        elif _ROOT.search(name):
            users = [node for node, _ in facts.consumers(f"{name}:0")]
            forward = [facts.forward_of(node) for node in users]
            rooted += [f"{each.name}:0" for each in forward if each is not None]
    # Programs make ones of other things, too; and the runtime folds gradients that are constant, so that the root may
    # be that of something behind the loss.
    found = [each for each in (*begun, *rooted) if _is_one_number(facts, each)]
    if found or not facts.gradients:
        return found
    numbers = [each for each in reversed(facts.order) if _is_one_number(facts, each)]
    named = [each for each in numbers if _LOSS.search(split_tensor_name(each)[0])]
    fetched = [each for each in facts.info.output_names if each in numbers]
    return named or fetched[:1]


def _is_one_number(facts: RunFacts, tensor: str) -> bool:
    health = facts.health(tensor)
    is_result = facts.phase(split_tensor_name(tensor)[0]) not in (
        "backward",
        "optimizer",
        "parameter",
        "input",
    )
    return is_result and health is not None and health.elements == 1 and "float" in (health.dtype or "float")


def forward_by_name(facts: GraphFacts, name: str) -> Node | None:
    """The node whose gradient another is part of, as names tell it; None if they do not."""
    for forward in forward_names(name):
        if forward in facts.nodes:
            return facts.nodes[forward]
        # The runtime numbers nodes in the bodies of loops, and puts them below the loop.
        scope, _, last = forward.rpartition("/")
        for spelled in (last, f"{last}_0"):
            for found in facts.named_last(spelled):
                if found.endswith(f"/{scope}/{spelled}" if scope else f"/{spelled}") and not forward_names(
                    found
                ):
                    return facts.nodes[found]
    return None


def _only(tensors: Iterable[str]) -> str | None:
    found = list(dict.fromkeys(tensors))
    return found[0] if len(found) == 1 else None
