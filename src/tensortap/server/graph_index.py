"""Graphs by the digest of what was received, so that clients need not send again what the server has."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from tensortap.errors import DumpFormatError
from tensortap.server.programs import Programs
from tensortap.store.writer import SessionStore

__all__ = ["GraphIndex"]

_KEPT = 10_000


class GraphIndex:
    """Where each graph was stored; safe to use from several threads.

    What is stored may have source lines that what was received had not, and another digest therefore.
    """

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._lock = threading.Lock()
        self._places: OrderedDict[str, tuple[SessionStore, str]] = OrderedDict()

    def put(self, received: bytes, store: SessionStore) -> str:
        """Store a graph; the digest of what was stored."""
        stored = store.put("graphs", self._programs.with_source_lines(received))
        with self._lock:
            self._places[hashlib.sha256(received).hexdigest()] = store, stored
            while len(self._places) > _KEPT:
                self._places.popitem(last=False)
        return stored

    def find(self, received: str, store: SessionStore) -> str | None:
        """The digest under which a session has the graph with this digest, brought there from another if need be."""
        with self._lock:
            place = self._places.get(received)
        if place is None:
            return None
        owner, stored = place
        if owner is store:
            return stored
        try:
            return store.put("graphs", owner.get("graphs", stored))
        except (OSError, DumpFormatError):
            return None
