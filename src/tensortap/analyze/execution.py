"""One of several times that a tensor was made in a run, as in a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensortap.analyze.health import Health

__all__ = ["Execution"]


class Execution:
    """One of several times that a tensor was made in a run.

    Args:
        time: microseconds since the epoch.
        health: at that time, or a function that works it out.
        value: gives what was recorded of it, None if that was not the value.
    """

    __slots__ = ("_health", "time", "value")

    def __init__(
        self,
        time: int,
        health: Health | Callable[[], Health | None],
        value: Callable[[], Any] = lambda: None,
    ) -> None:
        self.time = time
        self.value = value
        self._health: Any = health

    @property
    def health(self) -> Health | None:
        """None if it is not known."""
        if callable(self._health):
            self._health = self._health()
        found: Health | None = self._health
        return found
