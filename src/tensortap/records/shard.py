"""The part of a tensor that one rank holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Shard"]

_WHOLE, _OFFSET, _SHAPE = "whole_shape", "part_offset", "part_shape"
_PLACEMENT, _MESH, _COORDINATE = "placement", "mesh", "mesh_coordinate"


@dataclass(frozen=True, slots=True)
class Shard:
    """Where in the whole tensor a rank's part lies, and how the whole was laid out over ranks.

    Attributes:
        whole: shape of the whole.
        offset, shape: where the part begins, and its shape.
        placement: for every dimension of the mesh what was done there, as in `Shard(0)` or `Replicate()`.
        mesh: its dimensions with their sizes, as in `tp=4`.
        coordinate: the place of this rank in it.

    >>> shard = Shard((2048, 64), (1024, 0), (1024, 64), ("Shard(0)",), ("tp=2",), (1,))
    >>> shard.words
    'rows 1024–2047 of 2048'
    >>> Shard.of_attributes(shard.attributes) == shard
    True
    """

    whole: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    placement: tuple[str, ...] = ()
    mesh: tuple[str, ...] = ()
    coordinate: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the rank has all of it."""
        return self.shape == self.whole

    @property
    def key(self) -> str:
        """Equal for ranks that hold the same part."""
        return "" if self.is_whole else f"{list(self.offset)}+{list(self.shape)}"

    @property
    def words(self) -> str:
        """Which part it is, in words; empty for the whole."""
        said = []
        for dim, (begin, size, of) in enumerate(zip(self.offset, self.shape, self.whole, strict=True)):
            if size == of:
                continue
            what = (
                ("rows", "columns")[dim]
                if dim < 2 and len(self.whole) > 1
                else f"elements of dimension {dim}"
            )
            if len(self.whole) == 1:
                what = "elements"
            said.append(f"no {what} of {of}" if size == 0 else f"{what} {begin}–{begin + size - 1} of {of}")
        return ", ".join(said)

    def on_rank(self, rank: int | str, name: str) -> str:
        """Who has which part of what.

        >>> Shard((8,), (4,), (4,)).on_rank(1, "model/bias")
        'rank 1: elements 4–7 of 8 of model/bias'
        """
        return f"rank {rank}: {self.words or 'all'} of {name}"

    @property
    def attributes(self) -> dict[str, Any]:
        """As a node of a graph has it."""
        return {
            _WHOLE: list(self.whole),
            _OFFSET: list(self.offset),
            _SHAPE: list(self.shape),
            _PLACEMENT: list(self.placement),
            _MESH: list(self.mesh),
            _COORDINATE: list(self.coordinate),
        }

    @classmethod
    def of_attributes(cls, attributes: Mapping[str, Any]) -> Shard | None:
        """From what a node has; None if it stands for no shard."""
        try:
            whole, offset, shape = (tuple(map(int, attributes[each])) for each in (_WHOLE, _OFFSET, _SHAPE))
            if not len(whole) == len(offset) == len(shape):
                return None
            placement, mesh = (tuple(map(str, attributes.get(each) or ())) for each in (_PLACEMENT, _MESH))
            return cls(
                whole, offset, shape, placement, mesh, tuple(map(int, attributes.get(_COORDINATE) or ()))
            )
        except (KeyError, TypeError, ValueError):
            return None
