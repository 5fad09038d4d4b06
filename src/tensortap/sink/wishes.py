"""What a debug server asks of its clients: which gated watches it wants to see, and where it wants to stop.

A server says so in its replies (F11). What it said holds for the life of the process, across runs, until it
says otherwise; for each URL by itself, path included. A process that streams to very many URLs remembers the last.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from tensortap.records import tensor_name
from tensortap.wire.debug_service import DISABLED, READ_ONLY, READ_WRITE

__all__ = ["Wishes", "wishes_of"]

log = logging.getLogger("tensortap.sink")

MAX_GATES = 1 << 20
"""A server that opens more than this does not know what it does."""


class Wishes:
    """The gates of one URL, by watch key.

    Attributes:
        open: watch keys the server wants to see.
        breakpoints: those at which it also wants runs to wait for its reply.

    >>> from tensortap.wire.debug_service import EventReply
    >>> gates, reply = Wishes(), EventReply()
    >>> _ = reply.debug_op_state_changes.add(node_name="fc", debug_op="DebugIdentity", state=READ_ONLY)
    >>> gates.apply(reply.debug_op_state_changes)
    >>> sorted(gates.open), sorted(gates.breakpoints)
    (['fc:0:DebugIdentity'], [])
    """

    def __init__(self) -> None:
        # Replaced, never changed: whoever holds one has the state of a moment.
        self.open: frozenset[str] = frozenset()
        self.breakpoints: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def apply(self, changes: Iterable[Any]) -> None:
        """Take over what a reply asks for, in its order."""
        with self._lock:
            opened, stops = set(self.open), set(self.breakpoints)
            for change in changes:
                key = f"{tensor_name(change.node_name, change.output_slot)}:{change.debug_op}"
                if change.state == DISABLED and key not in opened:
                    log.info("The server closes the gate of %s, which was not open.", key)
                elif change.state in (READ_ONLY, READ_WRITE) and len(opened) >= MAX_GATES:
                    log.warning("The server opens more than %d gates; %s stays closed.", MAX_GATES, key)
                    break
                opened.discard(key)
                stops.discard(key)
                if change.state in (READ_ONLY, READ_WRITE):
                    opened.add(key)
                if change.state == READ_WRITE:
                    stops.add(key)
            self.open, self.breakpoints = frozenset(opened), frozenset(stops)

    def without_breakpoint(self, key: str) -> None:
        """Stop no more at a breakpoint whose server did not answer; its gate stays open."""
        with self._lock:
            self.breakpoints -= {key}


_KEPT = 64
"""Servers say what they want once; so many URLs are remembered without a run to hold them."""

_used: weakref.WeakValueDictionary[str, Wishes] = weakref.WeakValueDictionary()
_kept: OrderedDict[str, Wishes] = OrderedDict()
_lock = threading.Lock()


def wishes_of(url: str) -> Wishes:
    """The gates of a URL, the same for all its runs.

    >>> wishes_of("grpc://localhost:6064") is wishes_of("grpc://localhost:6064")
    True
    """
    with _lock:
        gates = _used.get(url)
        if gates is None:
            gates = _used[url] = Wishes()
        _kept[url] = gates
        _kept.move_to_end(url)
        if len(_kept) > _KEPT:
            _kept.popitem(last=False)
        return gates


def _begin_child() -> None:
    """After a fork: a thread that stayed with the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
