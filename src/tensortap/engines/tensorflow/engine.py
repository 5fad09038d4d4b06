"""The TensorFlow engine as commands see it: following programs, building its native part, trying itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from tensortap.seam.base import Follower

__all__ = ["ENGINE"]


class TensorFlowEngine:
    """What the commands ask of TensorFlow. Each part is imported by the first who needs it."""

    def follow(self, watch: Any) -> Follower:
        """Follow the program of this process from now on."""
        from tensortap.engines.tensorflow.follow import follow

        return follow(watch)

    def tell_if_serving(self, tell: Callable[[], None]) -> None:
        """No process of its own loads data here."""

    def listen_to_children(
        self, note: Callable[[str], None], serve_data: Callable[[Iterable[int]], None]
    ) -> None:
        """Nor in children that are forked from now on; `tf.data` loads data in threads."""

    def world_size(self) -> int:
        """1: the processes of a cluster know of each other through TensorFlow only."""
        return 1

    def builder(self) -> ModuleType:
        """Builds the observer."""
        from tensortap.engines.tensorflow.observer import build

        return build

    def train_once(self, root: str | Path) -> None:
        """Record one step of a small model."""
        from tensortap.engines.tensorflow.trial import train_once

        train_once(root)


ENGINE = TensorFlowEngine()
"""It has no state."""
