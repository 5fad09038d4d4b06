"""The gRPC service of tfdbg's debug servers: its messages, its methods, and what we add to it.

    Event, EventReply, CallTraceback, DebuggedSourceFiles and what is in them    from `messages.py`
    SEND_EVENTS, SEND_TRACEBACKS, SEND_SOURCE_FILES     full method names for a channel or a generic handler
    DISABLED, READ_ONLY, READ_WRITE     states of a gate: closed, open, open with a breakpoint
    MAX_CHUNK_BYTES     longer graphs and values travel in chunks (`events.py` splits and joins them)

What we add is agreed upon when a stream begins, so that every tfdbg client and server is still understood. A
server that takes batches (`batches.py`) says so in its initial metadata with the key `ACCEPTS_KEY`, whose
value is `ACCEPTS_BATCHES`; a client sends them, and the event that ends a run, only then. With `SERVER_KEY` it
gives its instance a name, so that clients notice when another one has taken its place and send their graphs
again. When a stream is over, `WRITTEN_KEY` in its trailing metadata says how many records of it were kept; without
that, a stream that ends well counts as kept whole. A client of ours sends `CLIENT_KEY`, with `PATIENCE_KEY` how many
seconds it waits at a breakpoint, and the token of a server that wants one under `TOKEN_KEY`, written by
`token_metadata` and read by `token_of`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensortap.errors import TensortapError
from tensortap.wire.messages import (
    CallTraceback,
    DebuggedSourceFile,
    DebuggedSourceFiles,
    Event,
    EventReply,
    GraphDef,
    OpLogProto,
    TensorProto,
)

__all__ = [
    "ACCEPTS_BATCHES",
    "ACCEPTS_KEY",
    "CLIENT_KEY",
    "DISABLED",
    "EAGER_EXECUTION",
    "GRAPH_EXECUTION",
    "JOBS_SERVICE",
    "MAX_CHUNK_BYTES",
    "PATIENCE_KEY",
    "READ_ONLY",
    "READ_WRITE",
    "SEND_EVENTS",
    "SEND_PROCESS",
    "SEND_SOURCE_FILES",
    "SEND_TRACEBACKS",
    "SERVER_KEY",
    "SERVICE",
    "TOKEN_KEY",
    "WRITTEN_KEY",
    "CallTraceback",
    "DebuggedSourceFile",
    "DebuggedSourceFiles",
    "Event",
    "EventReply",
    "GraphDef",
    "OpLogProto",
    "TensorProto",
    "WireError",
    "token_metadata",
    "token_of",
]

SERVICE = "tensorflow.EventListener"
SEND_EVENTS = f"/{SERVICE}/SendEvents"
"""A stream of Event answered by a stream of EventReply."""
SEND_TRACEBACKS = f"/{SERVICE}/SendTracebacks"
"""One CallTraceback, answered by one EventReply."""
SEND_SOURCE_FILES = f"/{SERVICE}/SendSourceFiles"
"""One DebuggedSourceFiles, answered by one EventReply."""

JOBS_SERVICE = "tensortap.Jobs"
SEND_PROCESS = f"/{JOBS_SERVICE}/SendProcess"
"""What a process says of itself (`store.processes`), with the name of its job: JSON, answered by one EventReply."""

MAX_CHUNK_BYTES = 4000 * 1024

DISABLED, READ_ONLY, READ_WRITE = 1, 2, 3
GRAPH_EXECUTION, EAGER_EXECUTION = 1, 2

CLIENT_KEY = "tensortap-client"
PATIENCE_KEY = "tensortap-patience"
ACCEPTS_KEY = "tensortap-accepts"
ACCEPTS_BATCHES = "batch-1"
SERVER_KEY = "tensortap-server"
WRITTEN_KEY = "tensortap-written"
TOKEN_KEY = "authorization"
_BEARER = "Bearer "


class WireError(TensortapError, ValueError):
    """What came over the network is not what the protocol allows; the message says why."""


def token_metadata(token: str) -> tuple[str, str]:
    """The metadata item that carries a token."""
    return TOKEN_KEY, _BEARER + token


def token_of(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token that came with a call, None if there is none.

    >>> token_of([token_metadata("secret")])
    'secret'
    """
    for key, value in metadata:
        if key == TOKEN_KEY and isinstance(value, str) and value.startswith(_BEARER):
            return value.removeprefix(_BEARER)
    return None
