"""Values that go from one operation to another by way of a list or a stack, which the graph does not show as an edge.

Loops put away what their gradients will need, and take it out again in the loop that runs backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tensortap.analyze.vocabulary import operation_of
from tensortap.analyze.vocabulary.canonical import MEETS, POPS, PUSHES, RETURNS
from tensortap.records import split_tensor_name

__all__ = ["handed_on"]

_FARTHEST = 500


def handed_on(
    op_types: Mapping[str, str],
    inputs: Callable[[str], Sequence[str]],
    waits_for: Callable[[str], Sequence[str]],
) -> dict[str, tuple[str, ...]]:
    """The tensors that an operation takes besides, or instead of, what its edges show; by the name of its node.

    Args:
        op_types: of all nodes by name.
        inputs: the tensors that a node is given.
        waits_for: the nodes it waits for. An engine may say of a loop in this way what comes back to its head.
    """
    returned = _returned(op_types, inputs, waits_for)
    return returned | _taken_out(op_types, lambda name: returned.get(name) or inputs(name))


def _returned(
    op_types: Mapping[str, str],
    inputs: Callable[[str], Sequence[str]],
    waits_for: Callable[[str], Sequence[str]],
) -> dict[str, tuple[str, ...]]:
    kinds = {op_type: operation_of(op_type).name for op_type in set(op_types.values())}
    found = {}
    for name, op_type in op_types.items():
        if kinds[op_type] == MEETS:
            back = [each for each in waits_for(name) if kinds.get(op_types.get(each, "")) == RETURNS]
            if back:
                found[name] = (*inputs(name), *(f"{each}:0" for each in back))
    return found


def _taken_out(
    op_types: Mapping[str, str], inputs: Callable[[str], Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    places = {op_type: operation_of(op_type) for op_type in set(op_types.values())}
    pops = [name for name, op_type in op_types.items() if places[op_type].name == POPS]
    if not pops:
        return {}
    pushes = {
        name: places[op_type].place_of("pushed")
        for name, op_type in op_types.items()
        if places[op_type].name == PUSHES
    }

    def behind(name: str) -> Iterator[str]:
        """The nodes from which a list or a stack comes: what carries it has it first, where ways meet in any place."""
        pending, seen = [name], {name}
        while pending and len(seen) < _FARTHEST:
            node = pending.pop()
            for tensor in inputs(node)[: None if places[op_types[node]].name == MEETS else 1]:
                before = split_tensor_name(tensor)[0]
                if before not in seen and before in op_types:
                    seen.add(before)
                    pending.append(before)
                    yield before

    makers = {push: next(iter([*behind(push)][-1:]), None) for push in pushes}
    found = {}
    for pop in pops:
        before = list(behind(pop))
        given = [push for push in before if push in pushes]
        given = given or [push for push, maker in makers.items() if maker is not None and maker in before]
        found[pop] = tuple(dict.fromkeys(inputs(push)[pushes[push]] for push in given))
    return {pop: tensors for pop, tensors in found.items() if tensors}
