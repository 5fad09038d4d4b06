"""The connection to one debug server: the only code that knows how gRPC is called."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensortap.sink.stream_options import StreamOptions
from tensortap.wire.debug_service import (
    CLIENT_KEY,
    PATIENCE_KEY,
    SEND_EVENTS,
    EventReply,
    token_metadata,
)
from tensortap.wire.transport import grpc

__all__ = ["LOST_CODES", "USELESS_CODES", "Connection", "is_listening", "who_is_there"]

TOKEN_VARIABLE = "TENSORTAP_TOKEN"
LOST_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How a call ends whose server has gone."""
USELESS_CODES = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""How a call ends that would end the same way if it were made again."""

_KNOCK_SECS = 0.5
_CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # connections of the user's own channels are none of our business
]


class Connection:
    """Made with the first call, and again after it was closed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel: Any = None

    def stream(self, messages: Iterator[bytes], options: StreamOptions, **details: Any) -> Any:
        """Begin to stream events."""
        method = self._connected(options).stream_stream(SEND_EVENTS, None, EventReply.FromString)
        return method(messages, metadata=_metadata(options), **details)

    def call(self, method: str, message: bytes, options: StreamOptions, timeout: float) -> Any:
        """Send one message; the future of the reply."""
        call = self._connected(options).unary_unary(method, None, EventReply.FromString)
        return call.future(message, timeout=timeout, metadata=_metadata(options), wait_for_ready=True)

    def close(self) -> None:
        """Let go of it; a later call connects anew."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _connected(self, options: StreamOptions) -> Any:
        channel = self._channel
        if channel is None:
            if options.ca_file is None:
                channel = grpc.insecure_channel(self._address, _CHANNEL_OPTIONS)
            else:
                roots = Path(options.ca_file).expanduser().read_bytes()
                channel = grpc.secure_channel(
                    self._address, grpc.ssl_channel_credentials(roots), _CHANNEL_OPTIONS
                )
            self._channel = channel
        return channel


def _metadata(options: StreamOptions) -> list[tuple[str, str]]:
    token = options.token or os.environ.get(TOKEN_VARIABLE)
    ours = [(CLIENT_KEY, "1"), (PATIENCE_KEY, f"{options.breakpoint_timeout_secs:g}")]
    return [*ours, *([token_metadata(token)] if token else [])]


def who_is_there(address: str) -> str:
    """Why nobody answers, as far as a connection tells; gRPC only says that there is none."""
    error = _knock(address)
    if error is not None:
        return (error.strerror or str(error)).lower()
    return (
        "something listens there, but it hangs, is no debug server, or only one side speaks TLS: "
        "ca_file here, --tls-cert there"
    )


def is_listening(address: str) -> bool:
    """Whether somebody might be there; False if connections are refused."""
    return not isinstance(_knock(address), ConnectionRefusedError)


def _knock(address: str) -> OSError | None:
    """The error of trying to connect, None if it can be done."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_SECS).close()
    except OSError as error:
        return error
    return None
