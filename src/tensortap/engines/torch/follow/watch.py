"""What following a program needs of whoever wants its runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Protocol

from tensortap.seam.options import RunOptions

__all__ = ["Watch"]


class Watch(Protocol):
    """What a follower needs to know of whoever wants the runs."""

    @property
    def options(self) -> Any:
        """`interceptor` and `stop`."""

    @property
    def root(self) -> Path:
        """The session directory."""

    @property
    def hooks(self) -> list[Any]:
        """The hooks around runs."""

    def wanted_of_next(self, session: Any) -> RunOptions | None:
        """What the first of the hooks asks for in the run that begins, where there is no other; None for nothing."""

    @property
    def seen(self) -> Any:
        """Counts: `steps`, `passes`, `skipped`, `elsewhere`, `suspected`."""

    @property
    def found(self) -> threading.Event:
        """Set when a bad value has been found."""

    @property
    def is_watching(self) -> bool:
        """Whether the run that has begun last is watched."""

    @property
    def prepares(self) -> bool:
        """To be set: whether the run that begins next comes before all others, and is kept only for bad values."""

    @prepares.setter
    def prepares(self, value: bool) -> None: ...

    @property
    def keeps_preparation(self) -> bool:
        """Whether such a run was kept; to be set if it is to be, because it has turned out to be the first step."""

    @keeps_preparation.setter
    def keeps_preparation(self, value: bool) -> None: ...

    @property
    def budget(self) -> Any:
        """Decides which runs are watched (`wants_next`, `ran`, `bad`, `owes`); None for all of them."""

    @property
    def copies(self) -> Any:
        """When to take checksums of what ranks hold copies of (`is_due`, `worked`, `take`); None for never."""

    @copies.setter
    def copies(self, value: Any) -> None: ...

    @property
    def updates(self) -> Any:
        """Where updates go (`add`) that are looked at; None if nobody wants them."""

    def finds_unwatched(self, step: int, what: str) -> None:
        """Hear what is bad in a run that was not watched."""

    def forget_preparation(self) -> None:
        """Count runs from the next one on."""

    def leaves_out(self, step: int) -> None:
        """Hear that the update of a step is left out, because gradients are bad."""

    def stopping(self) -> None:
        """Hear that the program is about to be ended."""

    def is_settled(self) -> bool:
        """Wait until it is known whether a bad value has been found."""
