"""What the observer's numbers of scopes, labels, parameters and names mean.

The observer counts what it sees. Whenever something is new, it asks here once for its number or its name; numbers stay
valid for as long as the name table of a session does. A *value* is the number of a name ("entry") and of one of its
outputs ("slot") in one.
"""

from __future__ import annotations

from typing import Final

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.program import module_holding
from tensortap.records import Position
from tensortap.untracked import untrack

__all__ = ["SLOT_BITS", "SLOT_MASK", "Numbers"]

SLOT_BITS: Final = 20
SLOT_MASK: Final = (1 << SLOT_BITS) - 1
_OUTSIDE_OF_MODULES = Position("forward")


class Numbers:
    """The meaning of one observer's numbers, by the names of a session."""

    def __init__(self, names: RunNames) -> None:
        self._names = names
        self._scopes: dict[str, int] = {}
        self._scope_names: list[str] = []
        self._positions: list[Position] = []
        """Where in the program each scope is."""
        self._labels: dict[str, int] = {}
        self._label_names: list[str] = []
        self._owners: dict[str, int] = {"": 0}
        self._owner_paths: list[str] = [""]
        self.entries: list[NameEntry] = []
        """Every name, by its number."""
        self.scope("")  # is number 0

    # --- of scopes and labels ------------------------------------------------------------------------

    def scope(self, name: str, position: Position = _OUTSIDE_OF_MODULES) -> int:
        """The number of a scope, which is empty or ends in a slash, and is somewhere in the program."""
        number = self._scopes.get(name)
        if number is None:
            number = self._scopes[name] = len(self._scope_names)
            self._scope_names.append(name)
            untrack(position)
            self._positions.append(position)
        return number

    def scope_name(self, scope: int) -> str:
        """What a scope is called."""
        return self._scope_names[scope]

    def label(self, name: str) -> int:
        """The number of the last part of names."""
        number = self._labels.get(name)
        if number is None:
            number = self._labels[name] = len(self._label_names)
            self._label_names.append(name)
        return number

    def inner_scope(self, entry: int) -> int:
        """The scope of what an op brings along: constants, hidden views."""
        named = self.entries[entry]
        return self.scope(named.name + "/", named.position or _OUTSIDE_OF_MODULES)

    def gradient_scope(self, entry: int) -> int:
        """The scope of the gradient of an op."""
        named = self.entries[entry]
        module = None if named.position is None else named.position.module
        return self.scope(named.gradient_scope, Position("backward", module))

    def stray_scope(self, name: str) -> int:
        """The scope of the gradient of an op that ran before this run."""
        return self.scope(f"gradients/{name}/", Position("backward"))

    def leaf_scope(self, value: int) -> int:
        """The scope of adding to the gradient of a leaf that is no parameter."""
        path = "leaf" if value < 0 else self.tensor_name(value).rpartition(":")[0]
        return self.scope(f"gradients/{path}/", Position("backward", module_holding(path)))

    def recomputed_scope(self, scope: int) -> int:
        """The scope of a module that the backward pass calls again."""
        return self.scope(f"recompute/{self._scope_names[scope]}", self._positions[scope])

    def owner_scope(self, scope: int, owner: int) -> int:
        """The scope of what an optimizer does with one parameter."""
        path = self._owner_paths[owner]
        return self.scope(f"{self._scope_names[scope]}{path}/", Position("optimizer", module_holding(path)))

    def owner(self, path: str) -> int:
        """The number of a parameter that something within an optimizer has to do with."""
        number = self._owners.get(path)
        if number is None:
            number = self._owners[path] = len(self._owner_paths)
            self._owner_paths.append(path)
        return number

    # --- of names --------------------------------------------------------------------------------------

    def new_entry(self, entry: int, scope: int, label: int, number: int) -> None:
        """Name a new entry."""
        named = self._names.entry(self._scope_names[scope], self._label_names[label], number)
        named.position = named.position or self._positions[scope]
        self.set_entry(entry, named)

    def set_entry(self, entry: int, named: NameEntry) -> None:
        """Say what a number stands for. (Placed by its number: an interrupt may have come between two of them.)"""
        untrack(named)
        if entry == len(self.entries):
            self.entries.append(named)
        else:
            self.entries[entry:] = [named]

    def tensor_name(self, value: int) -> str:
        """What a value is called."""
        return self.entries[value >> SLOT_BITS].tensor(value & SLOT_MASK)
