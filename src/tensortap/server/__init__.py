"""The debug server: gRPC ingest of what running jobs stream, and an HTTP interface beside it."""

from tensortap.server.debug_server import DebugServer
from tensortap.server.gates import WatchKey
from tensortap.server.handler import StreamHandler
from tensortap.server.limits import Limits

__all__ = ["DebugServer", "Limits", "StreamHandler", "WatchKey"]
