"""The events that carry graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensortap.wire.debug_service import MAX_CHUNK_BYTES, WireError
from tensortap.wire.encoding import delimited, double
from tensortap.wire.events.fields import bounded, within_int64
from tensortap.wire.events.joining import Joiner

__all__ = ["GraphJoiner", "ReceivedGraph", "graph_events"]


@dataclass(frozen=True, slots=True)
class ReceivedGraph:
    """A graph that arrived whole.

    Attributes:
        content: a serialised GraphDef; nobody has parsed it yet.
        device: full name of its device.
        timestamp: microseconds since the epoch.
    """

    content: bytes
    device: str
    timestamp: int


def graph_events(
    graph: bytes, device: str, timestamp: int, max_bytes: int = MAX_CHUNK_BYTES
) -> Iterator[bytes]:
    """The events that carry a serialised GraphDef (F8).

    >>> from tensortap.wire.debug_service import Event
    >>> joiner = GraphJoiner()
    >>> events = list(graph_events(b"0123456789", "/device:CPU:0", 17, max_bytes=4))
    >>> [joiner.add(Event.FromString(event)) is not None for event in events]
    [False, False, True]
    """
    number = int.from_bytes(hashlib.sha256(graph).digest()[:8], "little")
    count = max(1, -(-len(graph) // max_bytes))
    time = double(1, float(timestamp))
    for index in range(count):
        prefix = f"{number},{device},{timestamp}|{index}|{count}|".encode()
        yield time + delimited(4, prefix + graph[index * max_bytes : (index + 1) * max_bytes])


class GraphJoiner(Joiner):
    """Puts the chunks of graphs together."""

    def add(self, event: Any) -> ReceivedGraph | None:
        """Take a graph event; the graph if this was its last chunk.

        Raises:
            WireError: what stands before the chunk is not as it should be, or too much waits.
        """
        content: bytes = event.graph_def
        try:
            # Names of devices have neither commas nor bars; the content may have both.
            end = content.index(b"|", content.index(b"|", content.index(b"|") + 1) + 1)
            prefix = content[:end].decode()
            key, index, count = prefix.split("|")
            _, device, time = key.split(",")
            parts = self.join(key, int(index), int(count), content[end + 1 :], len(content))
            timestamp = int(time)
        except WireError:
            raise
        except ValueError as error:
            raise WireError(f"A graph begins with {content[:80]!r} instead of its description.") from error
        if parts is None:
            return None
        return ReceivedGraph(b"".join(parts), bounded(device), within_int64(timestamp))
