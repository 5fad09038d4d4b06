"""Gates and breakpoints of one job: what its clients are told to publish, and where they wait for us.

A gated watch publishes only while its gate is open. A breakpoint is an open gate at which the client also
waits for a reply after every value (F10–F12). Clients keep what they were told for the life of their process,
and a stream lasts one run. So the first reply on every stream repeats everything: then the server knows what
the client believes, which decides whether it waits.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tensortap.records import Record, tensor_name
from tensortap.server.limits import checked_name
from tensortap.wire.debug_service import DISABLED, READ_ONLY, READ_WRITE, EventReply, WireError
from tensortap.wire.values import numpy_dtype

__all__ = ["CLOSED", "STATE_NAMES", "GateClient", "Gates", "Hit", "WatchKey", "replacement"]

CLOSED = "closed"
STATE_NAMES = {DISABLED: CLOSED, READ_ONLY: "open", READ_WRITE: "breakpoint"}
_NUMBERS = {name: number for number, name in STATE_NAMES.items()}


class WatchKey(NamedTuple):
    """What a gate is about."""

    node_name: str
    output_slot: int
    debug_op: str

    @classmethod
    def parse(cls, text: str) -> WatchKey:
        """From `node:slot:DebugOp`.

        >>> str(WatchKey.parse("fc/addmm:0:DebugIdentity"))
        'fc/addmm:0:DebugIdentity'
        """
        node, _, rest = text.rpartition(":")
        node, _, slot = node.rpartition(":")
        if not (node and rest and slot.isascii() and slot.isdecimal() and len(slot) < 9):
            raise WireError(f"{text[:200]!r} is no watch key; write it as node:slot:DebugOp.")
        return cls(checked_name(node), int(slot), checked_name(rest, "debug op"))

    def __str__(self) -> str:
        return f"{tensor_name(self.node_name, self.output_slot)}:{self.debug_op}"


@dataclass(eq=False)
class Hit:
    """A client that waits at a breakpoint.

    Attributes:
        record: the tensor, as the client published it.
        replacement: the value it shall go on with, None for its own.
    """

    id: int
    run: str
    task: int
    record: Record
    since: float = field(default_factory=time.time)
    replacement: Any = None
    released: threading.Event = field(default_factory=threading.Event)


class Gates:
    """The states that were asked for, in the order they were asked for; safe to use from several threads.

    Attributes:
        version: grows with every change.

    >>> gates = Gates()
    >>> gates.set([WatchKey("fc", 0, "DebugIdentity")], "breakpoint")
    >>> client = gates.new_client()
    >>> reply = client.reply()
    >>> reply.debug_op_state_changes[0].node_name, client.waits_at(WatchKey("fc", 0, "DebugIdentity"))
    ('fc', True)
    """

    def __init__(self, limit: int = 100_000, saved: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._states: dict[WatchKey, int] = {}
        self.version = 0
        self._former: set[WatchKey] = set()
        self._hits: dict[int, Hit] = {}
        self._numbers = itertools.count(1)
        for text, state in (saved or {}).items():
            self._states[WatchKey.parse(text)] = _NUMBERS[state]

    def set(self, keys: Iterable[WatchKey], state: str) -> None:
        """Open or close gates, or make them breakpoints; clients learn of it with their next reply.

        Raises:
            ValueError: an unknown state, or too many gates.
        """
        if state not in _NUMBERS:
            raise ValueError(f"{state!r} is no state of a gate; choose one of {', '.join(_NUMBERS)}.")
        with self._lock:
            for key in keys:
                if key not in self._states and len(self._states) >= self._limit:
                    raise ValueError(f"There are {self._limit} gates already, which is the limit.")
                # A closed gate stays in the list: clients that opened it are told when their next run begins.
                if key in self._states or state != CLOSED:
                    if self._states.get(key) == READ_WRITE:
                        self._former.add(key)
                    self._states[key] = _NUMBERS[state]
            self.version += 1

    def states(self) -> dict[WatchKey, str]:
        """Every gate that was ever set, with its state."""
        with self._lock:
            return {key: STATE_NAMES[state] for key, state in self._states.items()}

    def was_breakpoint(self, key: WatchKey) -> bool:
        """Whether there was a breakpoint in the life of this server that a client may still believe in."""
        return key in self._former

    def new_client(self) -> GateClient:
        """What one stream has been told: nothing yet."""
        return GateClient(self)

    def changes(self, told: dict[WatchKey, int], version: int) -> tuple[dict[WatchKey, int], int]:
        """What differs from what a client was told, and the version of all that is asked for."""
        with self._lock:
            if version == self.version:
                return {}, version
            changed = {key: state for key, state in self._states.items() if told.get(key) != state}
            return changed, self.version

    # --- clients that wait -------------------------------------------------------------------------

    def hold(
        self, run: str, task: int, record: Record, timeout: float, is_active: Callable[[], bool]
    ) -> tuple[bool, Any]:
        """Wait until the hit is released, the time is over or the client has gone.

        Returns:
            Whether somebody released it, and the replacement.
        """
        hit = Hit(next(self._numbers), run, task, record)
        deadline = time.monotonic() + timeout
        self._hits[hit.id] = hit
        try:
            while not hit.released.wait(min(1.0, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline or not is_active():
                    return False, None
            return True, hit.replacement
        finally:
            self._hits.pop(hit.id, None)

    def hits(self) -> list[Hit]:
        """The clients that wait, longest first."""
        return sorted(self._hits.copy().values(), key=lambda hit: hit.id)

    def release(self, number: int, replacement: Any = None) -> bool:
        """Let a client go on; whether it was still waiting."""
        hit = self._hits.get(number)
        if hit is None:
            return False
        hit.replacement = replacement
        hit.released.set()
        return True

    def release_all(self) -> None:
        """Let every client go on: the server stops."""
        for hit in self.hits():
            hit.released.set()


class GateClient:
    """What one stream has been told so far."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._told: dict[WatchKey, int] = {}
        self._version = -1

    def reply(self) -> Any:
        """A reply with all changes the client has not been told."""
        reply = EventReply()
        changed, self._version = self._gates.changes(self._told, self._version)
        for key, state in changed.items():
            reply.debug_op_state_changes.add(
                state=state, node_name=key.node_name, output_slot=key.output_slot, debug_op=key.debug_op
            )
        self._told.update(changed)
        return reply

    def waits_at(self, key: WatchKey) -> bool:
        """Whether the client waits for a reply after a value of this key."""
        return bool(self._told) and self._told.get(key) == READ_WRITE


def replacement(record: Record, value: Any) -> Any:
    """A value that somebody gave, in the form in which it can take the place of a record's own.

    Raises:
        ValueError: shape or dtype do not fit.
    """
    kind = numpy_dtype(record.dtype)
    if kind is None:
        raise ValueError(f"{record.watch_key} is of type {record.dtype}, which cannot be replaced.")
    try:
        array = np.asarray(value, np.float64 if kind.kind == "V" else None)
        given = array.astype(kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"The value for {record.watch_key} cannot be {record.dtype}: {error}.") from None
    if given.ndim == 0:
        given = np.full(record.shape, given, kind)
    if given.shape != tuple(record.shape):
        raise ValueError(
            f"The value for {record.watch_key} has shape {list(given.shape)}; it needs {list(record.shape)}, "
            "or one number for all elements."
        )
    return given
