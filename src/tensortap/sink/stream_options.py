"""How runs are streamed to a debug server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["StreamOptions"]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How runs are streamed to a debug server. Times are in seconds.

    Attributes:
        connect_timeout_secs: how long records wait, in memory, for a server that does not answer. Training
            never waits.
        retry_secs: after that, how long the server is left alone before another attempt; doubled each time.
        max_retry_secs: the longest such pause.
        stall_timeout_secs: a server that has taken nothing for so long counts as down.
        max_queue_bytes: how much may wait in memory; what comes on top is dropped and counted.
        max_wait_secs: how long a full queue may hold up training before that. 0 never does; raise it where
            every value counts more than the pace.
        gate_timeout_secs: how long a run with gated watches waits for the server to say which of them it wants.
        breakpoint_timeout_secs: how long a run waits at a breakpoint; then it goes on, with a warning.
        flush_secs: how long the end of a session, or of the program, waits for the last records.
        spool_dir: a directory for runs that a server which is away cannot take. They are delivered when it is back, or
            by the next program that streams to it.
        spool_max_bytes: how much may be kept there for one server.
        token: for a server that wants one; the environment variable TENSORTAP_TOKEN by default.
        ca_file: certificates (PEM) to trust for a server that speaks TLS; plain text without it.
        job: what processes have in common that are one job to the server, unless a path of its URL names it; by default
            the ranks of one launch, or this process alone.

    >>> StreamOptions(connect_timeout_secs=2).retry_secs
    1.0
    """

    connect_timeout_secs: float = 10.0
    retry_secs: float = 1.0
    max_retry_secs: float = 30.0
    stall_timeout_secs: float = 10.0
    max_queue_bytes: int = 256 << 20
    max_wait_secs: float = 0.0
    gate_timeout_secs: float = 1.0
    breakpoint_timeout_secs: float = 60.0
    flush_secs: float = 10.0
    spool_dir: str | None = None
    spool_max_bytes: int = 1 << 30
    token: str | None = None
    ca_file: str | None = None
    job: str | None = None

    def __post_init__(self) -> None:
        for name in (
            "connect_timeout_secs", "retry_secs", "max_retry_secs", "stall_timeout_secs", "max_queue_bytes"
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, got {getattr(self, name)!r}.")
        for name in ("max_wait_secs", "gate_timeout_secs", "breakpoint_timeout_secs", "flush_secs"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)!r}.")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token):
            raise ValueError("token must be printable ASCII characters.")
        if self.ca_file is not None and not Path(self.ca_file).expanduser().is_file():
            raise ValueError(
                f"ca_file {str(self.ca_file)!r} is no file; name the certificates to trust, in PEM form."
            )
