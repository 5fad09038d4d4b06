"""The names a stream has used: each is looked at once, and there may be only so many."""

from __future__ import annotations

import weakref

from tensortap.records import KeyTable, Record
from tensortap.server.limits import Limits, checked_name
from tensortap.wire.debug_service import WireError

__all__ = ["KnownNames"]

_checked_tables: weakref.WeakKeyDictionary[KeyTable, int] = weakref.WeakKeyDictionary()


class KnownNames:
    """Of one stream. Every method raises a `WireError` for a name that cannot be, or for one too many.

    >>> KnownNames(Limits(devices=1)).device("/device:CPU:0")
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._devices: set[str] = set()
        self._keys: set[tuple[str, int, str, str]] = set()

    def device(self, device: str) -> None:
        """A device."""
        if device not in self._devices:
            self._devices.add(checked_name(device, "device"))
            if len(self._devices) > self._limits.devices:
                raise WireError(f"The stream names more than {self._limits.devices} devices.")

    def record(self, record: Record) -> None:
        """What a record is of."""
        key = record.node_name, record.output_slot, record.debug_op, record.device
        if key in self._keys:
            return
        checked_name(record.node_name)
        checked_name(record.debug_op, "debug op")
        self.device(record.device)
        self._keys.add(key)
        if len(self._keys) > self._limits.keys:
            raise WireError(f"The stream names more than {self._limits.keys} watch keys.")

    def table(self, table: KeyTable) -> None:
        """What the records of batches are of; a table is looked at once, whoever sends it."""
        for device in table.devices:
            self.device(device)
        checked = _checked_tables.get(table, 0)
        for number in range(checked, len(table)):
            key = table[number]
            checked_name(key.node_name)
            checked_name(key.debug_op, "debug op")
        _checked_tables[table] = len(table)
