"""The values around a bad one, recorded while they are still there.

A summary says that a value turned bad; what it was made of is gone by the time anybody reads that. So the moment an op
makes a NaN or an infinity of good inputs, its inputs and outputs are recorded whole. A NaN that comes of infinities
counts as made too: infinities can be intended, as in the mask of an attention, and NaN never is.

The native observer finds them by itself in the same way, and asks whether it `wants` and to `keep` them.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from tensortap.engines.observe.publishing import publish_whole
from tensortap.engines.tensors import Tensors
from tensortap.ops.debug_ops import DebugIdentity
from tensortap.pill import KIND_NAN
from tensortap.records import Node

if TYPE_CHECKING:
    from tensortap.engines.observe.pills import Pills
    from tensortap.sink.publisher import Publisher

__all__ = ["BadValues"]

_IDENTITY = DebugIdentity()


class BadValues:
    """Finds the makers of bad values in one run.

    Args:
        tensors: of the engine.
        publisher: takes the values.
        limit: how many nodes are recorded at most; 0 looks for none.
        shown: what nodes have been shown making in earlier runs; kept up to date.

    Attributes:
        waiting: summaries that have not been handed over yet.
    """

    def __init__(
        self, tensors: Tensors, publisher: Publisher, limit: int, shown: MutableMapping[str, int]
    ) -> None:
        self._tensors = tensors
        self.limit = limit
        self._shown = shown
        self._left = limit
        self._publisher = publisher
        self._kinds: dict[str, int] = {}
        self._recorded: set[str] = set()
        self._op_began = 0
        self.waiting: Pills | None = None

    def begin_next(self) -> None:
        """Another run begins."""
        self._left = self.limit
        self._kinds.clear()
        self._recorded.clear()

    def begin(self) -> None:
        """An op has run, and its outputs are about to be noted."""
        self._op_began = self._publisher.now()

    def note(self, tensor: str, kinds: int) -> None:
        """Take note of the kinds of bad values in a tensor: none, for a healthy one."""
        if self.limit:
            self._kinds[tensor] = kinds

    def kinds_of(self, tensor: str) -> int:
        """The kinds of bad values that were noted of a tensor."""
        return self._kinds.get(tensor, 0)

    def look(
        self,
        node: Node,
        outputs: Sequence[Any],
        tensors: Sequence[Any],
        written: Iterable[int],
    ) -> None:
        """Decide about a node whose outputs have been noted.

        Args:
            node: what was executed.
            outputs: its outputs.
            tensors: its inputs, as the node names them.
            written: identities of those that it has written to.
        """
        known = self._kinds
        inherited = found = 0
        for name in node.inputs:
            inherited |= known.get(name, 0)
        for slot in range(len(outputs)):
            # What was not summarised is as good or bad as what it was made of.
            found |= known.setdefault(node.tensor(slot), inherited)
        made = found & KIND_NAN & ~inherited if inherited else found
        if made and self.wants(node, made):
            gone = set(written)
            kept = (None if id(tensor) in gone else self._tensors.readable(tensor) for tensor in tensors)
            self.keep(node, outputs, zip(node.inputs, kept, strict=False), self._op_began)

    def wants(self, node: Node, made: int) -> bool:
        """Whether to record a node that has made such values: for the first time, and within the limit of the run.

        It counts as shown from now on, by its name: what a program does in every run, in whatever shapes, must not
        use up the limit of the run in which something new happens.
        """
        before = self._shown.get(node.name, 0)
        self._shown[node.name] = before | made
        if not made & ~before or not self._left:
            return False
        self._left -= 1
        return True

    def keep(
        self,
        node: Node,
        outputs: Iterable[Any],
        inputs: Iterable[tuple[str, Any | None]],
        began: int,
    ) -> None:
        """Record the values of a node, and of its inputs as far as they are still there.

        Args:
            node: what was executed.
            outputs: its outputs.
            inputs: name and value of each input; None if the value is gone.
            began: a time before that of any record of the node, at which its inputs were there.
        """
        if self.waiting is not None:
            self.waiting.flush()  # records leave in the order of time
        for name, tensor in inputs:
            if tensor is not None:
                self._record(name, tensor, began)
        for slot, tensor in enumerate(outputs):
            self._record(node.tensor(slot), tensor, self._publisher.now())

    def _record(self, name: str, tensor: Any, timestamp: int) -> None:
        if name in self._recorded:
            return
        self._recorded.add(name)
        node_name, _, slot = name.rpartition(":")
        device = self._tensors.device_of(tensor)
        output = int(slot)
        node = Node(node_name, "", outputs=(self._tensors.spec_of(tensor),) * (output + 1), device=device)
        everywhere = ((_IDENTITY, tuple(range(len(self._publisher.sinks)))),)
        publish_whole(self._tensors, self._publisher, everywhere, node, output, tensor, timestamp)
