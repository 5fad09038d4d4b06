"""What a run has handed over and was not sent yet: filled by the training thread, emptied by the one that sends."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from tensortap.sink.parcel import PARCEL_SECS, Parcel, Size
from tensortap.sink.reasons import QUEUE_FULL
from tensortap.sink.room import Room
from tensortap.sink.stream.account import Account

__all__ = ["Outbox"]

ItemT = TypeVar("ItemT")


class Outbox(Generic[ItemT]):
    """A queue, bounded in bytes together with all that share its room, from which items are taken in parcels.

    Args:
        changed: guards the room, the account and this; `close` and `give_up` are for whoever holds it.
        room: of all runs to a server.
        account: of this run.

    >>> changed, room = threading.Condition(), Room(100)
    >>> outbox = Outbox(changed, room, Account(room))
    >>> [outbox.put(letter, (1, 1, 60)) for letter in "ab"]
    [None, 'queue full']
    >>> with changed:
    ...     outbox.close()
    >>> outbox.take().items, outbox.take()
    (['a'], None)
    """

    def __init__(self, changed: threading.Condition, room: Room, account: Account) -> None:
        self._changed = changed
        self._room = room
        self._account = account
        self._parcel: Parcel[ItemT] = Parcel()
        self._is_urgent = False
        self._is_closed = False
        self._refusal: str | None = None

    def put(self, item: ItemT, size: Size, max_wait_secs: float = 0.0, is_urgent: bool = False) -> str | None:
        """Queue an item; why it is dropped, which is counted, or None if it is not.

        Args:
            item: what to send.
            size: of it.
            max_wait_secs: how long a full queue may hold the caller up.
            is_urgent: somebody waits for it to be sent.
        """
        with self._changed:
            reason = self._refusal
            if reason is None and not self._room.fits(size[2]):
                reason = self._wait_for_room(size[2], max_wait_secs)
            if reason is not None:
                self._account.refuse(reason, size[0])
                return reason
            parcel = self._parcel
            was_full = parcel.is_full
            self._account.take(size)
            parcel.add(item, size)
            self._is_urgent |= is_urgent
            # Waking a thread costs more than the record: only for the first of a parcel, and when it is full.
            if is_urgent or len(parcel.items) == 1 or parcel.is_full != was_full:
                self._changed.notify_all()
            return None

    def _wait_for_room(self, weight: int, max_wait_secs: float) -> str | None:
        fits = self._room.wait_for(
            weight, self._changed, max_wait_secs, is_hopeless=lambda: self._refusal is not None
        )
        return self._refusal or (None if fits else QUEUE_FULL)

    def take(self) -> Parcel[ItemT] | None:
        """Wait for a parcel: full, urgent, complete or old enough; None when nothing more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._parcel.items or self._is_complete)
            if not self._parcel.items:
                return None
            self._changed.wait_for(
                lambda: self._is_complete or self._is_urgent or self._parcel.is_full, PARCEL_SECS
            )
            parcel, self._parcel, self._is_urgent = self._parcel, Parcel(), False
            return parcel

    @property
    def _is_complete(self) -> bool:
        return self._is_closed or self._refusal is not None

    def release(self, weight: int) -> None:
        """Let go of the memory of what has been sent."""
        with self._changed:
            self._account.release(weight)
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more will be put in."""
        self._is_closed = True
        self._changed.notify_all()

    def give_up(self, reason: str) -> list[ItemT]:
        """Drop everything, also what comes later; the items that were never taken."""
        self._refusal = reason
        items = self._parcel.items
        self._parcel = Parcel()
        self._changed.notify_all()
        return items
