"""Stable names for the ops of a run.

A node is called after its scope and its op; the second `mm` of a scope in a run is `mm_1`. Nothing but the
order within one scope and op enters a name, so extra work elsewhere (the first optimizer step allocating
its state) does not rename anything. Names are given once per session and thread and looked up afterwards.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from tensortap.records import Node, Position, tensor_name

__all__ = ["Entry", "NameTable"]


class Entry:
    """One name, and the node it stood for when last seen, so that an unchanged node is not built again."""

    __slots__ = (
        "callers",
        "code",
        "func",
        "gradient_scope",
        "inputs",
        "instruction",
        "name",
        "node",
        "others",
        "others_changed",
        "others_vary",
        "position",
        "shapes",
        "tensors",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.gradient_scope = f"gradients/{name}/"
        self.func: Any = None
        self.code: CodeType | None = None
        self.instruction = -1
        self.callers: tuple[tuple[int, int], ...] = ()
        self.inputs: tuple[str, ...] = ()
        self.shapes: list[Any] = []
        self.others: list[Any] = []
        self.others_changed = False
        self.others_vary = False
        self.tensors: list[str] = [tensor_name(name, 0)]
        self.node: Node | None = None
        self.position: Position | None = None
        """Where in the program it is executed; told once, by whoever gives the name."""

    def tensor(self, slot: int) -> str:
        """Name of an output, made once."""
        while slot >= len(self.tensors):
            self.tensors.append(tensor_name(self.name, len(self.tensors)))
        return self.tensors[slot]


class _Family:
    """All nodes of one op in one scope, in the order of a run."""

    __slots__ = ("count", "entries", "run")

    def __init__(self) -> None:
        self.run = -1
        self.count = 0
        self.entries: list[Entry] = []


class NameTable:
    """Hands out the entries of a run, in order."""

    def __init__(self) -> None:
        self._families: dict[tuple[str, str], _Family] = {}
        self._sources: dict[str, Node] = {}
        self._taken: set[str] = set()
        self._run = -1

    def start_run(self) -> None:
        """Begin to count anew."""
        self._run += 1

    def source(self, name: str) -> Node | None:
        """The node last kept for something that is no op: a parameter, an input, a constant."""
        return self._sources.get(name)

    def keep_source(self, node: Node) -> None:
        """Keep a source's node, and its name from being given to an op."""
        self._sources[node.name] = node
        self._taken.add(node.name)

    def next(self, scope: str, label: str) -> Entry:
        """The entry of the next op called `label` in `scope` (empty, or ending in a slash)."""
        family = self._families.get((scope, label))
        if family is None:
            family = self._families[scope, label] = _Family()
        if family.run != self._run:
            family.run = self._run
            family.count = 0
        number = family.count
        family.count = number + 1
        return self._entry(family, scope, label, number)

    def entry(self, scope: str, label: str, number: int) -> Entry:
        """An entry by its number, for an interceptor that counts by itself."""
        return self._entry(self._families.setdefault((scope, label), _Family()), scope, label, number)

    def _entry(self, family: _Family, scope: str, label: str, number: int) -> Entry:
        while number >= len(family.entries):
            family.entries.append(Entry(self._new_name(scope + label, len(family.entries))))
        return family.entries[number]

    def _new_name(self, base: str, number: int) -> str:
        name = base if number == 0 else f"{base}_{number}"
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name
