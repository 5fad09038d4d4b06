"""Values that come of memory as it was found, such as `empty` returns it: what they are is chance."""

from __future__ import annotations

from tensortap.analyze.graph_facts import GraphFacts
from tensortap.analyze.vocabulary.canonical import UNWRITTEN
from tensortap.records import Node

__all__ = ["unwritten_behind"]

_ANCESTORS = 2_000
"""Nodes that are looked at to find out what something was made of."""


def unwritten_behind(facts: GraphFacts, node: Node) -> Node | None:
    """What made memory that a node was made of, among other things, and that nobody wrote before, no other rank either;
    the node itself, if all that use it take it so.

    >>> empty, mul = Node("empty", "aten::empty"), Node("mul", "aten::mul", inputs=("empty:0",))
    >>> facts = GraphFacts({"empty": empty, "mul": mul})
    >>> unwritten_behind(facts, mul).name
    'empty'
    """
    if facts.operation(node).name in UNWRITTEN:
        users = (user for user, _ in facts.consumers(node.tensor(0)))
        return None if any(map(facts.writers_of, users)) else node
    pending, seen = [node], {node.name}
    while pending and len(seen) < _ANCESTORS:
        each = pending.pop()
        if facts.operation(each).communicates:
            continue
        is_written = bool(facts.writers_of(each))  # through a view: part of it at least means something
        for place, tensor in enumerate(each.inputs):
            giver = None if place == facts.forgets(each) else facts.node_of(tensor)
            if giver is None or giver.name in seen:
                continue
            if is_written and (facts.is_view(giver) or facts.operation(giver).name in UNWRITTEN):
                continue
            if facts.operation(giver).name in UNWRITTEN:
                return giver
            seen.add(giver.name)
            pending.append(giver)
    return None
