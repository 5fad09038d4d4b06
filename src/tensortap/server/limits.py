"""How much the server takes from the network before it says no."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tensortap.wire.debug_service import WireError

__all__ = ["Limits", "checked_name"]


@dataclass(frozen=True)
class Limits:
    """Bounds on what clients may send. Whoever goes beyond one gets an error on his own stream.

    Attributes:
        message_bytes: of one message; tfdbg's clients send values and graphs in chunks of 4 MB.
        value_bytes: of one tensor, or one graph, joined.
        pending_bytes: of all chunks that wait for their last one, on all streams together.
        streams: calls served at the same time; each takes a thread.
        jobs: session directories the server makes.
        processes: of one job, that say what becomes of them.
        devices: that one stream may name; each has files of its own.
        keys: different watch keys on one stream.
        gates: gates and breakpoints of one job.
        source_bytes: of the source files kept for one job.

    >>> Limits(streams=10).message_bytes == Limits().message_bytes
    True
    """

    message_bytes: int = 64 << 20
    value_bytes: int = 2 << 30
    pending_bytes: int = 4 << 30
    streams: int = 1024
    jobs: int = 1000
    processes: int = 10_000
    devices: int = 256
    keys: int = 1_000_000
    gates: int = 100_000
    source_bytes: int = 64 << 20


MAX_NAME_BYTES = 16 << 10
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def checked_name(name: str, what: str = "node") -> str:
    """A name from the network, if it can be one.

    Names are only ever text in our files, but they travel on: into exports, whose scopes become directories,
    and onto terminals.

    >>> checked_name("encoder/fc/addmm")
    'encoder/fc/addmm'
    >>> checked_name("../../etc/passwd")
    Traceback (most recent call last):
    tensortap.wire.debug_service.WireError: The node name '../../etc/passwd' has '..' as a part.
    """
    # Characters first: they are fewer than bytes, and a megabyte need not be encoded to be refused.
    if len(name) > MAX_NAME_BYTES or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise WireError(
            f"The {what} name {name[:40]!r}… has {len(name)} characters; the limit is {MAX_NAME_BYTES} bytes."
        )
    if not name:
        raise WireError(f"A {what} has no name.")
    if _CONTROL.search(name):
        raise WireError(f"The {what} name {name[:80]!r} has a control character in it.")
    if _SURROGATE.search(name):
        raise WireError(
            f"The {what} name {name[:80]!r} has half a character in it, which no message can hold."
        )
    if ".." in name and ".." in name.split("/"):
        raise WireError(f"The {what} name {name[:80]!r} has '..' as a part.")
    return name
