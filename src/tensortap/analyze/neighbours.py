"""The part of a run's graph around one node, and the way from it to the loss."""

from __future__ import annotations

from typing import Any

from tensortap.analyze.facts import RunFacts
from tensortap.analyze.graph import edges_in, edges_out, find_path
from tensortap.phases import module_of, phase_of
from tensortap.records import Node, Shard, split_tensor_name

__all__ = ["around", "describe_node", "path_to_loss"]

MOST_NODES = 400
"""In one picture; those furthest away are left out."""
_FRAMES = 20


def around(facts: RunFacts, node: Node, depth: int, most: int = MOST_NODES) -> dict[str, Any]:
    """The nodes at most so many steps away, and the edges between them."""
    distance = {node.name: 0}
    border = [node.name]
    left_out = 0
    for step in range(1, depth + 1):
        following: list[str] = []
        for name in border:
            if name not in facts.nodes:
                continue
            for edges, sign in ((edges_in, -1), (edges_out, 1)):
                # Behind the node only consumers, before it only what was consumed: else everything is near everything.
                if distance[name] and (distance[name] > 0) != (sign > 0):
                    continue
                for _, other, _ in edges(facts, facts.nodes[name]):
                    if other in distance:
                        continue
                    if len(distance) >= most:
                        left_out += 1
                        continue
                    distance[other] = sign * step
                    following.append(other)
        border = following
    return {
        "nodes": [_brief(facts, name, place) for name, place in distance.items()],
        "edges": _edges(facts, distance),
        "left_out": left_out,
    }


def path_to_loss(facts: RunFacts, node: Node) -> list[str]:
    """Names of the nodes along which a value went to the loss; empty if it did not, or nobody knows the loss."""
    for loss in facts.losses:
        end = facts.nodes.get(split_tensor_name(loss)[0])
        path = None if end is None else find_path(facts, node, end)
        if path is not None:
            return [each.name for each in path]
    return []


def describe_node(facts: RunFacts, node: Node) -> dict[str, Any]:
    """Everything about one node that its panel shows."""
    brief = _brief(facts, node.name, 0)
    shard = Shard.of_attributes(node.attributes)
    part = "" if shard is None or not shard.words else shard.on_rank(facts.info.task, node.name)
    return {
        **brief,
        "text": f"{brief['text']}; {part}" if part else brief["text"],
        "device": node.device,
        "inputs": [{"tensor": each, "health": _text(facts, each)} for each in node.inputs],
        "outputs": [{"tensor": each, "health": _text(facts, each)} for each in facts.outputs_of(node)],
        "stack": [
            {"file": frame.file, "line": frame.line, "function": frame.function}
            for frame in node.stack[-_FRAMES:]
        ],
        "attributes": {key: str(node.attributes[key])[:200] for key in node.attributes},
    }


def _brief(facts: RunFacts, name: str, place: int) -> dict[str, Any]:
    node = facts.nodes.get(name)
    outputs = [f"{name}:0"] if node is None else facts.outputs_of(node) or [f"{name}:0"]
    health = "unknown"
    shown = outputs[0]
    for tensor in outputs:
        found = facts.health(tensor)
        if found is not None:
            health = "good" if found.was_read and health != "bad" else health
            if found.is_bad:
                health, shown = "bad", tensor
                break
    source = None if node is None else node.source
    return {
        "name": name,
        "op": "" if node is None else node.op_type,
        "phase": "" if node is None else phase_of(node),
        "module": None if node is None else module_of(node),
        "distance": place,
        "health": health,
        "text": _text(facts, shown),
        "tensor": shown,
        "source": None if source is None else {"file": source.file, "line": source.line},
    }


def _text(facts: RunFacts, tensor: str) -> str:
    found = facts.health(tensor)
    return "not recorded" if found is None else str(found)


def _edges(facts: RunFacts, known: dict[str, int]) -> list[dict[str, Any]]:
    found = []
    for name in known:
        node = facts.nodes.get(name)
        if node is None:
            continue
        for tensor, other, is_control in edges_in(facts, node):
            if other in known:
                found.append({"from": other, "to": name, "tensor": tensor, "control": is_control})
    return found
