"""What all streams to one debug server share."""

from __future__ import annotations

import threading
import time

from tensortap.sink.base import Counts
from tensortap.sink.room import Room
from tensortap.sink.stream.availability import Availability
from tensortap.sink.stream.messages import GraphCache
from tensortap.sink.stream_options import StreamOptions

__all__ = ["Link"]


class Link:
    """One lock and what it guards.

    Args:
        address: `host:port`.
        options: how to stream.

    Attributes:
        changed: the lock, notified whenever somebody may wait for what has changed.
        room: for the records of all runs that wait or are being sent.
        counts: what became of the records of all runs.
        graphs: which of them the server has.
        availability: what is believed of the server.
    """

    def __init__(self, address: str, options: StreamOptions) -> None:
        self.address = address
        self.options = options
        self.changed = threading.Condition(threading.Lock())
        self.room = Room(options.max_queue_bytes)
        self.counts = Counts()
        self.graphs = GraphCache()
        self.availability = Availability()

    @property
    def is_down(self) -> bool:
        """Whether the server is left alone for now; everything would be dropped."""
        return self.availability.is_down(time.monotonic())

    @property
    def connect_timeout_secs(self) -> float:
        """How long the next attempt may take."""
        return self.availability.connect_timeout(self.options)
