"""A look at what runs leave behind that nobody watches: is everything still finite?

A guarded run has taps where it writes to variables, and where it returns something, and nowhere else: a NaN in a
training step shows in what the step leaves in its variables, and an infinity that an optimizer makes does, too. Taps
that see nothing bad record nothing. Where taps cannot be had, the variables of a session are read after the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensortap.engines.tensorflow.executed import KnownGraph
from tensortap.engines.tensorflow.observer.interface import Armed, Block, ExecutedGraph, Kind, Lane
from tensortap.pill import KIND_NAN, PILL_BYTES, PILL_SIZE, kinds_of_all

if TYPE_CHECKING:
    from tensortap.engines.tensorflow.run import Watchable

__all__ = ["GuardWatch", "SessionGuard", "bad_rows_of"]

_FLOATS = frozenset(["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
_WRITES_REFERENCE = re.compile(r"^(?:Assign(?:Add|Sub)?|(?:Sparse)?Apply[A-Z]\w*|Scatter[A-Z]\w*)$")
_RETURNS = frozenset(["_Retval", "_DeviceRetval"])


class GuardWatch:
    """The taps of guarded runs of a session, or of the functions of a program.

    Args:
        owner: whose runs they are.
    """

    def __init__(self, owner: Watchable) -> None:
        self._owner = owner
        self._known: dict[int, KnownGraph] = {}
        self._watch = owner.watches.observer.watch(
            [Lane(Kind.PILL, mute_if_healthy=True)], _choose, graph=owner.graph.tf_graph
        )

    def arm(self) -> Armed:
        """Prepare for a run that is guarded."""
        return self._watch.arm()

    def bad(self, blocks: Iterable[Block]) -> str | None:
        """What is bad in a guarded run, in words; None for what was so in a run that was watched."""
        for block in blocks:
            for number, kinds in bad_rows_of(block, {0}):
                name, is_written = self._named(number)
                # Many programs return infinities that are meant.
                if name not in self._owner.known_bad and (is_written or kinds & KIND_NAN):
                    return self._in_words(number, name) if is_written else f"the result {name}"
        return None

    def _named(self, number: int) -> tuple[str, bool]:
        tensor = self._watch.tensors[number]
        executed = self._watch.graphs[tensor.graph]
        known = self._known.get(tensor.graph)
        if known is None:
            known = self._known[tensor.graph] = KnownGraph(self._owner.graph, executed)
        node = known.nodes[tensor.node]
        made = executed.nodes[tensor.node]
        name = f"{made.name if node is None else node.name}:{tensor.slot}"
        return name, tensor.slot >= len(made.dtypes) or _writes_reference(made.op)

    def _in_words(self, number: int, name: str) -> str:
        """The variable that was written."""
        tensor = self._watch.tensors[number]
        executed = self._watch.graphs[tensor.graph]
        made, node = executed.nodes[tensor.node], self._known[tensor.graph].nodes[tensor.node]
        inputs = made.inputs if node is None else node.inputs
        place = 0 if node is None or tensor.slot >= len(node.writes) else max(node.writes[tensor.slot], 0)
        return inputs[place].rpartition(":")[0] if place < len(inputs) else name


def _choose(executed: ExecutedGraph) -> npt.ArrayLike:
    """What an op has written to a variable, and what the run returns."""
    returned = {tensor for node in executed.nodes if node.op in _RETURNS for tensor in node.inputs[:1]}
    chosen = []
    for place, slot in executed.outputs:
        node = executed.nodes[place]
        is_float = (*node.dtypes, *node.written)[slot] in _FLOATS
        is_written = slot >= len(node.dtypes) or (slot == 0 and _writes_reference(node.op))
        chosen.append(int(is_float and (is_written or f"{node.name}:{slot}" in returned)))
    return chosen


def _writes_reference(op: str) -> bool:
    return _WRITES_REFERENCE.match(op) is not None


def bad_rows_of(block: Block, lanes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Number and kinds of the tensors of a block of whose pills some tell of a bad value."""
    if not block.has_bad:
        return
    here = np.isin(block.executions["lane"], list(lanes)) & (block.rows["nbytes"] >= PILL_BYTES)
    rows = block.rows[here]
    memory = np.frombuffer(block.data, np.uint8)
    places = rows["offset"][:, None].astype(np.int64) + np.arange(PILL_BYTES)
    pills = np.ascontiguousarray(memory[places]).view(np.float64).reshape(-1, PILL_SIZE)
    kinds = kinds_of_all(pills)
    for place in np.flatnonzero(kinds).tolist():
        yield int(rows["key"][place]), int(kinds[place])


class SessionGuard:
    """The guard of a session; see `tensortap.seam.base.Guard`."""

    def __init__(self, session: Watchable) -> None:
        self._session: Any = session
        self._armed: Armed | None = None
        self._before: list[str] | None = None

    def begin(self) -> None:
        """A run begins that nobody watches."""
        self.end()
        if self._session.watches.observer.needs_metadata:
            self._before = self._bad_variables()
            return
        self._armed = self._session.guard_watch.arm()
        self._session.guarded_by(self._armed)

    def end(self) -> str | None:
        """The run is over; what is bad in it, in words, None if nothing is."""
        armed, self._armed = self._armed, None
        if armed is not None:
            self._session.guarded_by(None)
            bad: str | None = self._session.guard_watch.bad(armed.finish().blocks)
            return bad
        before, self._before = self._before, None
        return (
            None
            if before is None
            else next((name for name in self._bad_variables() if name not in before), None)
        )

    def _bad_variables(self) -> list[str]:
        """Without taps: what the variables hold."""
        return [found.name for found in self._session.non_finite_state()]
