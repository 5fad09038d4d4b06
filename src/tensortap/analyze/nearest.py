"""What a tensor that nobody recorded was made of, as far back as it takes to come to something that was recorded.

Runtimes put nodes into a graph that no program has written: they carry values around loops and branches, and do in one
what the program does in several. Nobody watches them by name, but what they were given often is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tensortap.analyze.vocabulary.canonical import MEETS, PUSHES
from tensortap.phases import SOURCES
from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.analyze.run_facts import RunFacts

__all__ = ["Nearest", "nearest_recorded", "only_carries"]

_FARTHEST = 64


class Nearest(NamedTuple):
    """The nearest recorded tensors behind one.

    Attributes:
        tensors: their names.
        is_carried: nothing but what carries values lies between, so that the one is what one of these is.
    """

    tensors: tuple[str, ...]
    is_carried: bool


def only_carries(facts: RunFacts, node: Node) -> bool:
    """Whether a node hands on what it is given: all of it, part of it, or one of several."""
    return facts.is_view(node) or facts.operation(node).name in (MEETS, PUSHES)


def nearest_recorded(facts: RunFacts, tensor: str) -> Nearest:
    """The nearest recorded tensors that a tensor was made of."""
    found: dict[str, None] = {}
    pending, seen = [tensor], {tensor}
    is_carried = True
    while pending:
        each = pending.pop()
        if each in facts.order:
            found[each] = None
            continue
        node = facts.node_of(each)
        if node is None or node.op_type in SOURCES or len(seen) > _FARTHEST:
            is_carried = False
            continue
        operation = facts.operation(node)
        if operation.is_value_free:
            continue
        carries = only_carries(facts, node)
        is_carried &= carries
        taken = node.inputs if not carries or operation.name == MEETS else facts.carried_by(node)
        further = [name for name in taken if name not in seen]
        seen.update(further)
        pending += further
    return Nearest(tuple(found), is_carried and bool(found))
