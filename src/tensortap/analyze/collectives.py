"""Values that came from other ranks: by which collective, and how a bad one went from rank to rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensortap.analyze.nearest import only_carries
from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.analyze.run_facts import RunFacts

__all__ = ["Arrival", "collective_behind", "collective_words", "ranks_in"]

_FARTHEST = 8


def collective_behind(facts: RunFacts, node: Node) -> Node | None:
    """The collective by which the value of a node has come from other ranks; None if it was made here.

    Programs see what a collective brings through views and copies, and its own buffers as tensors from nowhere.
    """
    found = _before(facts, node, _FARTHEST)
    if found is None and not node.inputs:
        found = _after(facts, node, _FARTHEST)
    return found


def _before(facts: RunFacts, node: Node, depth: int) -> Node | None:
    if facts.operation(node).communicates:
        return node
    if not depth or not _hands_on(facts, node):
        return None
    places = facts.carried_by(node) if only_carries(facts, node) else node.inputs[1:2]
    for tensor in places or node.inputs[:1]:
        giver = facts.node_of(tensor)
        found = None if giver is None else _before(facts, giver, depth - 1)
        if found is not None:
            return found
    return None


def _after(facts: RunFacts, node: Node, depth: int) -> Node | None:
    """The collective into whose output a tensor from nowhere is copied."""
    for tensor in facts.outputs_of(node):
        for user, place in facts.consumers(tensor):
            if not depth or not _hands_on(facts, user):
                continue
            if only_carries(facts, user):
                found = _after(facts, user, depth - 1)
                if found is not None:
                    return found
            elif place == 1:
                target = facts.node_of(user.inputs[0])
                found = None if target is None else _writer(facts, target, depth)
                if found is not None:
                    return found
    return None


def _writer(facts: RunFacts, node: Node, depth: int) -> Node | None:
    """The collective whose output a node is, or is a view of."""
    while depth and not facts.operation(node).communicates:
        giver = facts.node_of(node.inputs[0]) if node.inputs and only_carries(facts, node) else None
        if giver is None:
            return None
        node, depth = giver, depth - 1
    return node if facts.operation(node).communicates else None


def _hands_on(facts: RunFacts, node: Node) -> bool:
    return only_carries(facts, node) or facts.operation(node).name == "copy"


def ranks_in(node: Node) -> tuple[int, ...]:
    """The ranks that take part in a collective, as far as the engine has told."""
    ranks = node.attributes.get("ranks")
    return tuple(ranks) if isinstance(ranks, list) and all(isinstance(each, int) for each in ranks) else ()


def collective_words(node: Node) -> str:
    """A collective in words: what it is, and of whom.

    >>> collective_words(Node("all_reduce", "c10d::allreduce_", attributes={"ranks": [0, 1], "reduce_op": "sum"}))
    'allreduce (sum) of ranks 0, 1'
    >>> collective_words(Node("recv_", "c10d::recv_", attributes={"ranks": [0, 1], "peer": 0}))
    'recv from rank 0'
    """
    word = node.op_type.rpartition("::")[2].strip("_") or node.op_type
    peer, ranks = node.attributes.get("peer"), ranks_in(node)
    if word in ("recv", "irecv", "broadcast", "scatter") and isinstance(peer, int):
        return f"{word} from rank {peer}"
    if word in ("send", "isend", "reduce", "gather") and isinstance(peer, int):
        return f"{word} to rank {peer}"
    how = node.attributes.get("reduce_op")
    word = f"{word} ({how})" if isinstance(how, str) and how and not how.startswith("<") else word
    shown = ", ".join(map(str, ranks[:16])) + (" …" if len(ranks) > 16 else "")
    return f"{word} of ranks {shown}" if ranks else word


@dataclass(frozen=True, slots=True)
class Arrival:
    """How a bad value came to a rank that did not make it.

    Attributes:
        collective: the node that brought it, None if that was not seen.
        words: the same in words.
    """

    rank: int
    run: int
    step: int
    collective: str | None
    words: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in ("rank", "run", "step", "collective", "words")}
