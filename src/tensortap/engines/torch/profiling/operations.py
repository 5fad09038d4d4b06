"""What ran on the host, as a list of operations that do not overlap.

An operation is a node, or, where no node stands for what ran, a call under PyTorch's own name: the outermost that
does work itself. What is inside an operation is part of it. A block that the user named is around operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from tensortap.engines.torch.profiling.events import Calls, is_op
from tensortap.engines.torch.profiling.join import Joined
from tensortap.records import Node
from tensortap.seam.step_facts import Block

__all__ = ["Operation", "blocks_of", "operations_of"]

_USER_SCOPE = 7
"""The number of the scope in which PyTorch records what was named with `record_function`."""

_OF_OPTIMIZERS = "Optimizer."
"""PyTorch names these itself. Their ops have a phase of their own."""


class Operation(NamedTuple):
    """One operation.

    Attributes:
        node: its place among the nodes of the run, -1 if none stands for it.
        sequence: autograd's number.
        calls: number of its thread, and the places of its call and those inside it.
    """

    name: str
    op_type: str
    node: int
    thread: int
    start: int
    end: int
    sequence: int
    calls: tuple[int, range]


def operations_of(threads: Sequence[Calls], nodes: Sequence[Node], joined: Joined) -> list[Operation]:
    """What ran, in the order it began."""
    found: list[Operation] = []
    for number, calls in enumerate(threads):
        is_node = [(number, place) in joined.nodes for place in range(len(calls))]
        nodes_before = [0, *accumulate(is_node)]
        place = 0
        while place < len(calls):
            call, after = calls[place], calls.after(place)
            position = joined.nodes.get((number, place), -1)
            has_nodes = nodes_before[after] > nodes_before[place + 1]
            has_calls = after > place + 1
            if position < 0 and (has_nodes or (has_calls and not is_op(call.name))):
                place += 1  # it only calls others
                continue
            node = nodes[position] if position >= 0 else None
            found.append(
                Operation(
                    call.name if node is None else node.name,
                    call.name if node is None else node.op_type,
                    position,
                    calls.thread,
                    _end_of_nodes(calls, is_node, place, after) if has_nodes else call.start,
                    call.end,
                    call.sequence,
                    (number, range(place, after)),
                )
            )
            place = place + 1 if has_nodes else after
    found.sort(key=lambda each: each.start)
    return found


def _end_of_nodes(calls: Calls, is_node: Sequence[bool], place: int, after: int) -> int:
    """When the nodes inside a call have ended: a gradient is complete after the addition inside its function."""
    return max(calls[inner].end for inner in range(place + 1, after) if is_node[inner])


def blocks_of(threads: Sequence[Calls], operations: Sequence[Operation]) -> tuple[Block, ...]:
    """What the user named that is no operation itself."""
    drawn = {(number, places.start) for number, places in (each.calls for each in operations)}
    found = []
    for number, calls in enumerate(threads):
        for place in range(len(calls)):
            call = calls[place]
            is_named = call.scope == _USER_SCOPE and not call.name.startswith(_OF_OPTIMIZERS)
            if is_named and (number, place) not in drawn:
                found.append(Block(call.name, calls.thread, call.start, call.end))
    return tuple(found)
