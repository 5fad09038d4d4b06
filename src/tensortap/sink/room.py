"""Room for what waits, bounded in bytes: the books of every queue, and how long a full one holds training up."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Room"]


class Room:
    """How many bytes wait, and how many may. Its owner guards it with a lock.

    Training waits for a full queue only so long. If nothing has been given back by then the room counts as stalled: it
    refuses at once what does not fit, and waiting begins anew only after something was given back. A dead disk or a
    server that hangs therefore costs a training run the wait once.

    Args:
        max_bytes: how much may wait. More than that is accepted when nothing waits, as it could never be otherwise.

    Attributes:
        used_bytes: how much waits.
        is_stalled: somebody has waited in vain, and nothing was given back since.

    >>> room = Room(100)
    >>> room.take(60)
    >>> room.fits(40), room.fits(41), room.fits(0)
    (True, False, True)
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.is_stalled = False

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for so much; for nothing there always is."""
        return not nbytes or not self.used_bytes or self.used_bytes + nbytes <= self.max_bytes

    def take(self, nbytes: int) -> None:
        """So much waits from now on."""
        self.used_bytes += nbytes

    def give_back(self, nbytes: int) -> None:
        """So much waits no more."""
        self.used_bytes -= nbytes
        self.is_stalled = False

    def wait_for(
        self,
        nbytes: int,
        changed: threading.Condition,
        max_wait_secs: float,
        is_hopeless: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Whether there is room, if need be after a wait.

        Args:
            nbytes: for how much.
            changed: of the owner, who holds it; notified when something is given back.
            max_wait_secs: how long to wait for room.
            is_hopeless: whether waiting has lost its purpose.
        """
        if self.fits(nbytes):
            return True
        if not self.is_stalled and not is_hopeless():
            changed.wait_for(lambda: is_hopeless() or self.fits(nbytes), max_wait_secs)
        fits = self.fits(nbytes)
        if not fits and not is_hopeless():
            self.is_stalled = True
        return fits
