"""Names and places of tensors from outside, as the observer keeps them: what `Outside` names for it."""

from __future__ import annotations

import torch

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch.memory import in_place_of
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.observer.library import NativeObserver
from tensortap.engines.torch.observer.nodes import Nodes
from tensortap.engines.torch.observer.numbers import Numbers
from tensortap.records import Node, TensorSpec

__all__ = ["NativeSources"]


class NativeSources:
    """Tells an observer of tensors from outside. It works out itself where they are, and when one is used.

    Args:
        observer: is told.
        names: of the session.
        numbers: what the observer's numbers mean.
        nodes: that it knows.
    """

    def __init__(self, observer: NativeObserver, names: RunNames, numbers: Numbers, nodes: Nodes) -> None:
        self._library = observer.library
        self._observer = observer
        self._names = names
        self._numbers = numbers
        self._nodes = nodes
        self._entry_numbers: dict[str, int] = {}
        self._node_numbers: dict[str, int] = {}

    # --- as `Outside` knows names ------------------------------------------------------------------

    def next(self, scope: str, label: str) -> NameEntry:
        """The entry of the next thing called `label` in `scope`."""
        numbers = self._numbers
        found: int = self._library.tt_next(self._observer.handle, numbers.scope(scope), numbers.label(label))
        return numbers.entries[found]

    def source(self, name: str, spec: TensorSpec) -> Node | None:
        """A node that was kept for something that is no op."""
        return self._names.source(name, spec)

    def keep_source(self, node: Node) -> Node:
        """Keep a source's node; the one that stands for it."""
        return self._names.keep_source(node)

    # --- as it knows places --------------------------------------------------------------------------

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The name of a tensor's value, if it has one."""
        known_by = _known_by(tensor)
        value = self._library.tt_find(self._observer.handle, known_by._cdata)
        return None if value < 0 else self._numbers.tensor_name(value)

    def is_unwritten(self, tensor: torch.Tensor) -> bool:
        """Whether an op of this run has made its memory, and nobody has written it yet."""
        return bool(self._library.tt_is_unwritten(self._observer.handle, _known_by(tensor)._cdata))

    def add_source(self, tensor: torch.Tensor, node: Node) -> bool:
        """Make a source known, to become a node when it is first used; False if it cannot be."""
        entry, number = self.numbered(node)
        known_by = _known_by(tensor)
        return bool(self._library.tt_add_source(self._observer.handle, known_by._cdata, entry, number))

    def expect(self, node: Node) -> None:
        """Have numbers for a tensor that will perhaps be there in a later run."""
        self.numbered(node)

    def own(self, tensor: torch.Tensor, path: str) -> bool:
        """Note that a tensor of this run has to do with a parameter; False if it has no name yet."""
        library, handle = self._library, self._observer.handle
        known_by = _known_by(tensor)
        value = library.tt_find(handle, known_by._cdata)
        if value < 0:
            return False
        library.tt_set_owner(handle, value, self._numbers.owner(path))
        return True

    def numbered(self, node: Node) -> tuple[int, int]:
        """Entry and node of something that is no op, from now on this node."""
        entry = self._entry_numbers.get(node.name)
        if entry is None:
            entry = self._library.tt_reserve_entry(self._observer.handle)
            self._numbers.set_entry(entry, NameEntry(node.name))
            self._node_numbers[node.name] = self._nodes.keep(-1, node)
            self._entry_numbers[node.name] = entry
        number = self._node_numbers[node.name]
        known = self._nodes[number]
        if known is not node:
            if known.outputs[0].dtype == node.outputs[0].dtype and known.device == node.device:
                self._nodes.exchange(number, node)  # another shape changes nothing of what is watched
            else:
                self._nodes.keep(number, node)
        return entry, number


def _known_by(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor is known by: perhaps made for this question, so hold it while the observer looks at it."""
    seen = in_place_of(tensor)
    return tensor if seen is None else seen
