"""The PyTorch engine as commands see it: following programs, building its native part, trying itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from tensortap.seam.base import Follower

__all__ = ["ENGINE"]


class TorchEngine:
    """What the commands ask of PyTorch. Each part is imported by the first who needs it."""

    def follow(self, watch: Any) -> Follower:
        """Follow the program of this process from now on."""
        from tensortap.engines.torch.follow import follow

        return follow(watch)

    def tell_if_serving(self, tell: Callable[[], None]) -> None:
        """In a child: say so if it turns out to load data for others."""
        from tensortap.engines.torch.follow import tell_if_loading_data

        tell_if_loading_data(tell)

    def listen_to_children(
        self, note: Callable[[str], None], serve_data: Callable[[Iterable[int]], None]
    ) -> None:
        """Hear what forked children do, and which processes load data."""
        from tensortap.engines.torch.follow import listen_in_children, listen_to_loaders

        listen_in_children(note)
        listen_to_loaders(serve_data)

    def world_size(self) -> int:
        """How many ranks the job of this process has."""
        from tensortap.engines.torch.follow import world_size

        return world_size()

    def builder(self) -> ModuleType:
        """Builds the observer."""
        from tensortap.engines.torch.observer import build

        return build

    def train_once(self, root: str | Path) -> None:
        """Record one step of a small model."""
        from tensortap.engines.torch.trial import train_once

        train_once(root)


ENGINE = TorchEngine()
"""It has no state."""
