"""Which call of the profiler's record was the execution of which node.

The native interceptor counts the operators of each thread as the profiler does, and notes the number of every one
that is a node. The dispatch mode executes each op inside of itself, so the profiler sees it twice, one in the
other, in the order of the nodes. Either way the names must agree; what does not is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensortap.engines.torch.profiling.events import Calls
from tensortap.records import Node

__all__ = ["Joined", "join"]

_GRADIENT = "AccumulateGrad"
_GRADIENT_CALL = "torch::autograd::AccumulateGrad"
_MODE = "PythonDispatchMode"
_LOOK_AHEAD = 64
"""How many calls may have no node before a node counts as not found."""


@dataclass
class Joined:
    """What was found.

    Attributes:
        nodes: places of nodes, by number of the thread's calls and place of the call.
        addresses: where the outputs of a node lie, by place of the node and slot.
        unmatched: nodes that were executed and not found.
    """

    nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    addresses: dict[tuple[int, int], int] = field(default_factory=dict)
    unmatched: int = 0


def join(threads: Sequence[Calls], nodes: Sequence[Node], executions: bytes | bytearray) -> Joined:
    """Find the nodes of a run in the profiler's record."""
    joined = Joined()
    if executions:
        _by_number(joined, threads, nodes, executions)
    elif nodes:
        _by_order(joined, threads, nodes)
    _find_gradients(joined, threads, nodes)
    return joined


def _by_number(
    joined: Joined, threads: Sequence[Calls], nodes: Sequence[Node], executions: bytes | bytearray
) -> None:
    numbers = {calls.thread: number for number, calls in enumerate(threads)}
    last = -1
    for position, thread, call, slot, address in np.frombuffer(executions, "<i8").reshape(-1, 5).tolist():
        if address:
            joined.addresses[position, slot] = address
        if position == last:
            continue
        last = position
        number = numbers.get(thread, -1)
        operators = threads[number].operators if number >= 0 else []
        place = operators[call] if call < len(operators) else -1
        if place >= 0 and _is_call_of(nodes[position], threads[number][place].name):
            joined.nodes[number, place] = position
        else:
            joined.unmatched += 1


def _by_order(joined: Joined, threads: Sequence[Calls], nodes: Sequence[Node]) -> None:
    executed = [(number, place) for number, calls in enumerate(threads) for place in _executed_by_mode(calls)]
    executed.sort(key=lambda each: threads[each[0]][each[1]].start)
    following = 0
    for position, node in enumerate(nodes):
        if "::" not in node.op_type:  # a source
            continue
        for index in range(following, min(following + _LOOK_AHEAD, len(executed))):
            number, place = executed[index]
            if _is_call_of(node, threads[number][place].name):
                joined.nodes[number, place] = position
                following = index + 1
                break
        else:
            joined.unmatched += 1


def _executed_by_mode(calls: Calls) -> Iterator[int]:
    """Places of the calls that a dispatch mode executed."""
    if not any(calls[place].name == _MODE for place in range(len(calls))):
        yield from _repeated(calls)  # earlier versions of PyTorch do not tell
        return
    around: list[int] = []
    for place in range(len(calls)):
        while around and calls.after(around[-1]) <= place:
            around.pop()
        if calls[place].name == _MODE and around:
            inner = _call_inside(calls, place, calls[around[-1]].name)
            if inner is not None:
                yield inner
        around.append(place)


def _call_inside(calls: Calls, mode: int, name: str) -> int | None:
    """The place of the call of the same operator directly inside a mode, unless that reaches another mode."""
    place = mode + 1
    while place < calls.after(mode):
        after = calls.after(place)
        if calls[place].name == name:
            return None if any(calls[each].name == _MODE for each in range(place + 1, after)) else place
        place = after
    return None


def _repeated(calls: Calls) -> Iterator[int]:
    """Places of calls that an equal call contains, the outermost of each."""
    place = 0
    while place < len(calls):
        end = calls.after(place)
        name = calls[place].name
        inner = next((each for each in range(place + 1, end) if calls[each].name == name), None)
        if inner is None or "::" not in name:
            place += 1
        else:
            yield inner
            place = end


def _is_call_of(node: Node, name: str) -> bool:
    return node.op_type.partition(".")[0] == name


def _find_gradients(joined: Joined, threads: Sequence[Calls], nodes: Sequence[Node]) -> None:
    """Complete gradients are no operators; autograd's own function for each is where they come to be."""
    wanted = [position for position, node in enumerate(nodes) if node.op_type == _GRADIENT]
    places = [
        (number, place)
        for number, calls in enumerate(threads)
        for place in range(len(calls))
        if calls[place].name == _GRADIENT_CALL
    ]
    if len(wanted) != len(places):  # of other leaves too, and nobody can tell which
        return
    places.sort(key=lambda each: threads[each[0]][each[1]].start)
    starts = {position: threads[n][place].start for (n, place), position in joined.nodes.items()}
    for position, (number, place) in zip(wanted, places, strict=True):
        if _lies_between(threads[number][place].start, threads[number][place].end, position, starts):
            joined.nodes[number, place] = position


def _lies_between(start: int, end: int, position: int, starts: Mapping[int, int]) -> bool:
    """Whether a call lies where the nodes before and after it say."""
    before, after = starts.get(position - 1), starts.get(position + 1)
    return (before is None or before < end) and (after is None or after > start)
