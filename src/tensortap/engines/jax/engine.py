"""The JAX engine as commands see it: following programs, building its taps, trying itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from tensortap.seam.base import Follower

__all__ = ["ENGINE"]


class JaxEngine:
    """What the commands ask of JAX. Each part is imported by the first who needs it."""

    def follow(self, watch: Any) -> Follower:
        """Follow the program of this process from now on."""
        from tensortap.engines.jax.follow import follow

        return follow(watch)

    def tell_if_serving(self, tell: Callable[[], None]) -> None:
        """No process of its own loads data here."""

    def listen_to_children(
        self, note: Callable[[str], None], serve_data: Callable[[Iterable[int]], None]
    ) -> None:
        """Forked children do not compute with JAX, whose threads stayed with the parent."""

    def world_size(self) -> int:
        """How many processes `jax.distributed` has joined."""
        from jax._src import distributed

        return distributed.global_state.num_processes or 1

    def builder(self) -> ModuleType:
        """Builds the taps."""
        from tensortap.engines.jax.taps import build

        return build

    def train_once(self, root: str | Path) -> None:
        """Record one step of a small model."""
        from tensortap.engines.jax.trial import train_once

        train_once(root)


ENGINE = JaxEngine()
"""It has no state."""
