"""gRPC, told to keep its remarks to itself.

Its core writes notes such as "Other threads are currently calling into gRPC" to the terminal of every program
that forks a data loader. Errors are still written, and a user who has set GRPC_VERBOSITY gets what he asked for.
"""

from __future__ import annotations

import os

from tensortap.extras import require

__all__ = ["grpc"]

require("stream", "Streaming to a debug server")

_is_set = "GRPC_VERBOSITY" in os.environ
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc  # noqa: E402

if not _is_set:
    del os.environ["GRPC_VERBOSITY"]
