"""Why records are given up: the names under which sinks count them."""

from __future__ import annotations

QUEUE_FULL = "queue full"
AFTER_FORK = "written in a forked process"

# On the way to a disk.
WRITE_FAILED = "write failed"
INTERRUPTED = "interrupted"

# On the way to a debug server.
UNREACHABLE = "server unreachable"
STALLED = "server stopped taking records"
CONNECTION_LOST = "connection lost"
REFUSED = "refused by the server"
NOT_KEPT = "not kept by the server"
PROGRAM_ENDED = "program ended before they were sent"
NOT_SENDABLE = "no form in the protocol"
SPOOLED = "spooled to be delivered later"
SPOOL_FULL = "spool failed or full"
