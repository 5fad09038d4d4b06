"""Stable names for the ops of a run.

A node is called after its scope and its op; the second `mm` of a scope in a run is `mm_1`. Nothing but the
order within one scope and op enters a name, so extra work elsewhere (the first optimizer step allocating
its state) does not rename anything. Names are given once per session and thread and looked up afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

from tensortap.records import Node, Position, TensorSpec, tensor_name

__all__ = ["NameEntry", "NameTable"]


class NameEntry:
    """One name, and the node it stood for when last seen, so that an unchanged node is not built again."""

    __slots__ = (
        "callers",
        "code",
        "func",
        "inputs",
        "instruction",
        "more_tensors",
        "name",
        "node",
        "others",
        "others_changed",
        "others_vary",
        "position",
        "shapes",
        "tensor_0",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.func: Any = None
        self.code: CodeType | None = None
        self.instruction = -1
        self.callers: tuple[tuple[int, int], ...] = ()
        self.inputs: tuple[str, ...] = ()
        self.shapes: Sequence[Any] = ()
        self.others: Sequence[Any] = ()
        self.others_changed = False
        self.others_vary = False
        self.tensor_0 = f"{name}:0"
        self.more_tensors: list[str] | None = (
            None  # few have more than one, and a list is work for the collector
        )
        self.node: Node | None = None
        self.position: Position | None = None
        """Where in the program it is executed; told once, by whoever gives the name."""

    @property
    def gradient_scope(self) -> str:
        """The scope of the gradient of what has this name."""
        return f"gradients/{self.name}/"

    def tensor(self, slot: int) -> str:
        """Name of an output, made once."""
        if not slot:
            return self.tensor_0
        if self.more_tensors is None:
            self.more_tensors = [self.tensor_0]
        while slot >= len(self.more_tensors):
            self.more_tensors.append(tensor_name(self.name, len(self.more_tensors)))
        return self.more_tensors[slot]


_SOURCES_KEPT = 8
"""Nodes of one name: models that come in turns, or batches of a few sizes, have each its own. If there are more, the
node says what they have in common, and stands for all that is like them."""


class _Count:
    """How many nodes of one op in one scope a run has had."""

    __slots__ = ("count", "run")

    def __init__(self) -> None:
        self.run = -1
        self.count = 0


class NameTable:
    """Hands out the entries of a run, in order."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], _Count] = {}
        self._entries: dict[tuple[str, str, int], NameEntry] = {}  # by scope, label and number within a run
        self._sources: dict[str, Node] = {}
        # Of names that have stood for several: by what each is, or by the kind of many.
        self._more_sources: dict[str, dict[TensorSpec | tuple[str, int], Node]] = {}
        self._taken: set[str] = set()
        self._run = -1

    def __len__(self) -> int:
        return len(self._taken)

    def __bool__(self) -> bool:
        return True

    def taken(self) -> frozenset[str]:
        """All names that have been given."""
        return frozenset(self._taken)

    def start_run(self) -> None:
        """Begin to count anew."""
        self._run += 1

    def source(self, name: str, spec: TensorSpec) -> Node | None:
        """A node that was kept for something that is no op: a parameter, an input, a constant."""
        node = self._sources.get(name)
        if node is None or node.outputs[0] is spec or node.outputs[0] == spec:
            return node
        more = self._more_sources.get(name)
        if more is None:
            return None
        node = more.get(spec.kind) or more.get(spec)
        return node if node is not None and node.outputs[0].covers(spec) else None

    def keep_source(self, node: Node) -> Node:
        """Keep a source's node, and its name from being given to an op; the node that stands for it from now on."""
        before = self._sources.get(node.name)
        if before is not None:
            node = self._one_of_several(before, node)
        self._sources[node.name] = node
        self._taken.add(node.name)
        return node

    def _one_of_several(self, before: Node, node: Node) -> Node:
        spec = node.outputs[0]
        kept = self._more_sources.setdefault(node.name, {before.outputs[0]: before})
        alike = [each for each in kept.values() if each.outputs[0].kind == spec.kind]
        if (len(alike) >= _SOURCES_KEPT or spec.kind in kept) and not node.attributes:
            for each in alike:
                spec = spec.merged_with(each.outputs[0])
                kept.pop(each.outputs[0], None)
            node = kept[spec.kind] = replace(node, outputs=(spec,))
        else:
            if len(alike) >= _SOURCES_KEPT:
                del kept[alike[0].outputs[0]]
            kept[spec] = node
        return node

    def next(self, scope: str, label: str) -> NameEntry:
        """The entry of the next op called `label` in `scope` (empty, or ending in a slash)."""
        counted = self._counts.get((scope, label))
        if counted is None:
            counted = self._counts[scope, label] = _Count()
        if counted.run != self._run:
            counted.run = self._run
            counted.count = 0
        number = counted.count
        counted.count = number + 1
        return self.entry(scope, label, number)

    def entry(self, scope: str, label: str, number: int) -> NameEntry:
        """An entry by its number, for an interceptor that counts by itself."""
        found = self._entries.get((scope, label, number))
        if found is None:
            found = self._entries[scope, label, number] = NameEntry(self._new_name(scope + label, number))
        return found

    def _new_name(self, base: str, number: int) -> str:
        name = base if number == 0 else f"{base}_{number}"
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name
