"""Events of our own, which only our servers are sent."""

from __future__ import annotations

from tensortap.wire.encoding import delimited, header

__all__ = ["own_event"]


def own_event(plugin: str, *content: bytes | memoryview) -> list[bytes | memoryview]:
    """The parts of an Event that carries content of our own, in the place where plugins keep theirs."""
    length = sum(map(len, content))
    name = delimited(1, plugin.encode())
    inner = name + header(2, length)
    # Event.summary > value > metadata > plugin_data, each with the length of all that is in it.
    outer = b""
    size = len(inner) + length
    for number in (1, 9, 1, 5):
        start = header(number, size)
        outer = start + outer
        size += len(start)
    return [outer + inner, *content]
