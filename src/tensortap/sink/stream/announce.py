"""What the user is told of a debug server, once for each thing that goes wrong."""

from __future__ import annotations

from typing import Any

from tensortap.sink.base import notices
from tensortap.sink.reasons import CONNECTION_LOST, REFUSED, UNREACHABLE

__all__ = ["is_down", "lost_connection", "refused_run"]


def is_down(address: str, why: str) -> None:
    """The server is left alone for a while."""
    notices.warn(
        (UNREACHABLE, address),
        "The debug server %s %s. Training goes on; records are dropped and counted until it takes them "
        "again, which is tried from time to time.",
        address,
        why,
    )


def lost_connection(address: str) -> None:
    """A run was lost on its way."""
    notices.warn(
        (CONNECTION_LOST, address),
        "The connection to the debug server %s was lost: the records of that run are counted as dropped.",
        address,
    )


def refused_run(address: str, code: Any, details: str) -> None:
    """The server does not want a run."""
    notices.warn(
        (REFUSED, address, code),
        "The debug server %s refused a run, whose records are counted as dropped: %s %s",
        address,
        code.name,
        details,
    )
