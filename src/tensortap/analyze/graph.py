"""Walks through the graph of a run: what a node was made of, what was made of it, and how one led to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tensortap.analyze.facts import RunFacts
from tensortap.analyze.names import meant
from tensortap.errors import NotThereError
from tensortap.records import Node, split_tensor_name

__all__ = ["Branch", "edges_in", "edges_out", "find_path", "node_named", "tree"]


class Branch(NamedTuple):
    """One line of a tree.

    Attributes:
        tensor: the tensor that is handed over, or the name of a node for a control edge.
        node: what stands at this end of the edge, None if the graph does not have it.
        depth: from 1.
        is_last: of its siblings.
        is_repeated: its own branches were shown before.
        is_cut: it has branches deeper than was asked for.
    """

    tensor: str
    node: Node | None
    depth: int
    is_last: bool
    is_control: bool = False
    is_repeated: bool = False
    is_cut: bool = False


Edges = Callable[[RunFacts, Node], list[tuple[str, str, bool]]]
"""Of a node: what is handed over, the node at the other end, and whether it is a control edge."""


def node_named(facts: RunFacts, name: str) -> Node:
    """A node by its name, or by that of one of its tensors.

    Raises:
        LookupError: there is none; the message suggests similar names.
    """
    node = facts.nodes.get(name) or facts.nodes.get(split_tensor_name(name)[0])
    if node is not None:
        return node
    if not facts.nodes:
        raise NotThereError("No graph was stored with this run, so nothing is known about its nodes.")
    node_name = split_tensor_name(name)[0]
    raise NotThereError(f"There is no node {node_name!r} in this run.{meant(node_name, facts.nodes)}")


def edges_in(facts: RunFacts, node: Node) -> list[tuple[str, str, bool]]:
    """What a node takes and waits for."""
    data = [(each, split_tensor_name(each)[0], False) for each in dict.fromkeys(node.inputs)]
    return data + [(each, each, True) for each in node.control_inputs]


def edges_out(facts: RunFacts, node: Node) -> list[tuple[str, str, bool]]:
    """What takes an output of a node."""
    slots = max(len(node.outputs), 1)
    taken = [
        (node.tensor(slot), user.name)
        for slot in range(slots)
        for user, _ in facts.consumers(node.tensor(slot))
    ]
    return [(tensor, user, False) for tensor, user in dict.fromkeys(taken)]


def tree(facts: RunFacts, node: Node, edges: Edges, *, depth: int, control: bool = False) -> Iterator[Branch]:
    """The branches below a node, depth first; what was shown before is not opened again."""
    seen = {node.name}
    known: dict[str, list[tuple[str, str, bool]]] = {}

    def followed(parent: Node) -> list[tuple[str, str, bool]]:
        # Remembered: in a dense graph a node is asked about once for each of its edges.
        if parent.name not in known:
            known[parent.name] = [each for each in edges(facts, parent) if control or not each[2]]
        return known[parent.name]

    def below(parent: Node, level: int) -> Iterator[Branch]:
        found = followed(parent)
        for place, (tensor, name, is_control) in enumerate(found):
            other = facts.nodes.get(name)
            is_last = place == len(found) - 1
            repeated = name in seen
            more = other is not None and bool(followed(other))
            cut = more and not repeated and level >= depth
            shown = tensor if edges is edges_in else f"{name}"
            yield Branch(shown, other, level, is_last, is_control, repeated and more, cut)
            if other is not None and not repeated and level < depth:
                seen.add(name)
                yield from below(other, level + 1)

    # Depth is bounded by the caller, far below Python's limit.
    yield from below(node, 1)


def find_path(facts: RunFacts, start: Node, end: Node) -> list[Node] | None:
    """A shortest way along which values went from one node to another; None if there is none."""
    previous: dict[str, str] = {start.name: ""}
    pending = deque([start])
    while pending:
        node = pending.popleft()
        if node.name == end.name:
            path = [end.name]
            while previous[path[-1]]:
                path.append(previous[path[-1]])
            return [facts.nodes[name] for name in reversed(path)]
        for _, name, _ in edges_out(facts, node):
            if name not in previous:
                previous[name] = node.name
                pending.append(facts.nodes[name])
    return None
