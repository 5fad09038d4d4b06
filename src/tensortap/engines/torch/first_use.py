"""Tensors from outside, used for the first time: how the dispatch mode notices that. The observer does so itself."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tensortap.engines.observe.names import NameEntry
from tensortap.engines.torch.interceptor import Observation
from tensortap.engines.torch.memory import in_place_of
from tensortap.engines.torch.names import RunNames
from tensortap.engines.torch.outside import Outside, constant_position, hidden_view_node
from tensortap.engines.torch.places import DTYPE, OFFSET, SHAPE, STRIDES, Origin, Place, Places
from tensortap.engines.torch.program import Program
from tensortap.records import Node

__all__ = ["UsedOutside"]


class UsedOutside(Outside):
    """The tensors from outside in one run, which become nodes of it as they are used.

    Args:
        program: has them.
        names: of the session.
        places: of the run.
        observation: counts what fails.
        on_use: called as (tensor name, node, tensor) when a source is used for the first time.
    """

    def __init__(
        self,
        program: Program,
        names: RunNames,
        places: Places,
        observation: Observation,
        on_use: Callable[[str, Node, torch.Tensor], None],
    ) -> None:
        super().__init__(program, names, places, observation)
        self._all_places = places
        self._on_use = on_use
        self._state_named = 0

    def use(self, origin: Origin, tensor: torch.Tensor) -> None:
        """Make a source that is used for the first time a node of the run."""
        node, origin.source = origin.source, None
        if node is not None:
            self._on_use(origin.name, node, tensor)

    def find_new_state(self, place: Place) -> Origin | None:
        """Look again for state that the running optimizer has made in this very step."""
        return self._all_places.origins.get(place) if self.has_new_state() else None

    def known_name(self, tensor: torch.Tensor) -> str | None:
        """The name of a tensor that is about to be used; None if it comes from nowhere."""
        place = self._all_places.place_of(tensor)
        origin = self._all_places.origins.get(place) or self._find_state_of_all(place)
        if origin is None:
            return None
        self.use(origin, tensor)
        return origin.name

    def _find_state_of_all(self, place: Place) -> Origin | None:
        """Look among the state of every known optimizer: a compiled one does not announce that it steps."""
        size = sum(len(optimizer.state) for optimizer in self._program.optimizers.values())
        if size == self._state_named:
            return None
        self._state_named = size
        for optimizer in self._program.optimizers.values():
            self.name_optimizer_state(self._program.optimizer_scope(optimizer), optimizer)
        return self._all_places.origins.get(place)

    def name_unseen(self, consumer: NameEntry, tensor: torch.Tensor, place: Place) -> str:
        """Name a tensor that came from nowhere, after the op that uses it first."""
        places = self._all_places
        found = places.origins.get(place)
        if found is not None:  # the same op takes it twice
            return found.name
        seen = in_place_of(tensor)
        if seen is not None:
            tensor = seen
        memory = places.memory_at(place)
        root = None if memory is None else places.origins.get(memory.root)
        if memory is None or root is None or memory.root[DTYPE] != place[DTYPE] or place[STRIDES] is None:
            entry = self._names.next(consumer.name + "/", "const")
            self._add(entry.name, tensor, "Const", constant_position(consumer.position))
            self.use(places.origins[place], tensor)
            return entry.tensor(0)
        # A view, made where nobody could see it, of memory that does have a name.
        if root.source is not None:
            self.use(root, tensor.as_strided(memory.root[SHAPE], memory.root[STRIDES], memory.root[OFFSET]))
        entry = self._names.next(consumer.name + "/", "as_strided")
        node = hidden_view_node(entry.name, root.name, memory.writer, tensor, consumer.position)
        places.assign(tensor, place, entry.tensor(0))
        self._on_use(entry.tensor(0), node, tensor)
        return entry.tensor(0)
