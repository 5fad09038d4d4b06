"""The books of one run on its way to a debug server: what was taken, and what became of it."""

from __future__ import annotations

from tensortap.sink.base import Counts
from tensortap.sink.parcel import Size
from tensortap.sink.reasons import NOT_KEPT
from tensortap.sink.room import Room

__all__ = ["Account"]


class Account:
    """Every record that was taken is counted once in the end, as written or as dropped. Guarded by its owner's lock.

    Args:
        room: where its records wait; what it holds of it is given back at the latest when the account is closed.
        counts: of the run, and of whoever else wants to know.

    >>> room, counts = Room(1 << 20), Counts()
    >>> account = Account(room, counts)
    >>> account.take((3, 24, 100))
    >>> account.arrive(kept=2)
    >>> counts.written, counts.dropped, room.used_bytes
    (2, {'not kept by the server': 1}, 0)
    """

    def __init__(self, room: Room, *counts: Counts) -> None:
        self._room = room
        self._counts = counts
        self._records = 0
        self._value_bytes = 0
        self._held_bytes = 0

    def take(self, size: Size) -> None:
        """Take records in, which wait from now on."""
        records, value_bytes, weight = size
        self._records += records
        self._value_bytes += value_bytes
        self._held_bytes += weight
        self._room.take(weight)

    def release(self, weight: int) -> None:
        """Let go of the memory of what has been sent; nothing, if all of it has been let go of already."""
        weight = min(weight, self._held_bytes)
        self._held_bytes -= weight
        self._room.give_back(weight)

    def refuse(self, reason: str, records: int) -> None:
        """Count records as dropped that were not taken in."""
        for counts in self._counts:
            counts.drop(reason, records)

    def strike(self, reason: str, value_bytes: int) -> None:
        """Count one record as dropped that had been taken in."""
        self._records -= 1
        self._value_bytes -= value_bytes
        self.refuse(reason, 1)

    def arrive(self, kept: int | None = None) -> None:
        """Everything has arrived, or as much of it as the server says it has kept."""
        records, nbytes = self._close()
        kept = records if kept is None else min(kept, records)
        for counts in self._counts:
            counts.wrote(nbytes * kept // max(records, 1), kept)
        self.refuse(NOT_KEPT, records - kept)

    def lose(self, reason: str) -> None:
        """Nothing has arrived."""
        self.refuse(reason, self._close()[0])

    def _close(self) -> tuple[int, int]:
        self.release(self._held_bytes)
        taken = self._records, self._value_bytes
        self._records = self._value_bytes = 0
        return taken
