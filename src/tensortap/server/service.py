"""The gRPC side: tfdbg's service, with a token, limits, and an error for whoever breaks the protocol."""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NoReturn

from tensortap.server.received_run import CannotStore
from tensortap.server.reception import Reception
from tensortap.server.stream import Stream
from tensortap.wire.debug_service import (
    ACCEPTS_BATCHES,
    ACCEPTS_KEY,
    JOBS_SERVICE,
    PATIENCE_KEY,
    SERVER_KEY,
    SERVICE,
    WRITTEN_KEY,
    EventReply,
    WireError,
    token_of,
)
from tensortap.wire.transport import grpc

__all__ = ["make_grpc_server"]

log = logging.getLogger(__name__)

_KEEPALIVE_MILLISECONDS = 20_000
"""After so long without a sign of life a client is asked for one, and given up after as long again."""
_AFTERMATH_SECS = 0.02
"""The messages of a stream also end when its client dies, and only a moment later is that known."""


def make_grpc_server(reception: Reception, token: str | None) -> grpc.Server:
    """A gRPC server with the service on it, not bound to a port yet."""
    service, limits = _Service(reception, token), reception.limits
    made = grpc.server(
        futures.ThreadPoolExecutor(limits.streams, thread_name_prefix="tensortap-stream"),
        maximum_concurrent_rpcs=limits.streams,
        options=[
            ("grpc.max_receive_message_length", limits.message_bytes),
            ("grpc.max_send_message_length", -1),
            # Otherwise a second server would share the port, and each would get some of the streams.
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MILLISECONDS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_MILLISECONDS),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ],
    )
    handlers: dict[str, Any] = {
        "SendEvents": grpc.stream_stream_rpc_method_handler(
            service.send_events, response_serializer=EventReply.SerializeToString
        ),
        "SendTracebacks": grpc.unary_unary_rpc_method_handler(
            service.send_tracebacks, response_serializer=EventReply.SerializeToString
        ),
        "SendSourceFiles": grpc.unary_unary_rpc_method_handler(
            service.send_source_files, response_serializer=EventReply.SerializeToString
        ),
    }
    of_jobs: dict[str, Any] = {
        "SendProcess": grpc.unary_unary_rpc_method_handler(
            service.send_process, response_serializer=EventReply.SerializeToString
        )
    }
    made.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(SERVICE, handlers),
            grpc.method_handlers_generic_handler(JOBS_SERVICE, of_jobs),
        )
    )
    return made


class _Service:
    """The methods. Messages arrive as bytes and are parsed here, where an error can be explained."""

    def __init__(self, reception: Reception, token: str | None) -> None:
        self._reception = reception
        self._token = token

    def send_events(self, messages: Iterator[bytes], context: Any) -> Iterator[Any]:
        self._check_token(context)
        context.send_initial_metadata(
            ((ACCEPTS_KEY, ACCEPTS_BATCHES), (SERVER_KEY, self._reception.instance))
        )
        with self._reception.serving():
            stream = Stream(self._reception, context.is_active, _patience(context))
            yield from self._events(stream, messages, context)

    def _events(self, stream: Stream, messages: Iterator[bytes], context: Any) -> Iterator[Any]:
        error: str | None = "The stream broke off before the run ended."
        gone = threading.Event()
        context.add_callback(gone.set)
        try:
            for message in messages:
                reply = stream.take(message)
                if reply is not None:
                    yield reply
            if not stream.is_complete and (self._reception.is_stopping or gone.wait(_AFTERMATH_SECS)):
                self._reception.statistics.add(broken=1)
                return
            last = stream.last_reply()
            error = None
            # The run is complete on disk before the client sees the end of the stream.
            stream.close()
            context.set_trailing_metadata(((WRITTEN_KEY, str(stream.written)),))
            if last is not None:
                yield last
        except WireError as problem:
            error = f"The server refused what the client sent: {problem}"
            self._refuse(context, problem)
        except Exception as problem:
            if not context.is_active():
                self._reception.statistics.add(broken=1)
                return
            error = f"The server failed: {problem!r}"
            if not isinstance(problem, CannotStore):  # which has said so, and is no mistake of ours
                self._reception.statistics.add(failures=1)
                log.exception("A stream failed inside the server.")
            context.abort(grpc.StatusCode.INTERNAL, str(problem))
        finally:
            if error is not None:
                stream.close(error)

    def send_tracebacks(self, message: bytes, context: Any) -> Any:
        return self._unary(self._reception.programs.add_traceback, message, context)

    def send_source_files(self, message: bytes, context: Any) -> Any:
        return self._unary(self._reception.programs.add_sources, message, context)

    def send_process(self, message: bytes, context: Any) -> Any:
        return self._unary(self._reception.processes.tell, message, context)

    def _unary(self, take: Callable[[bytes], None], message: bytes, context: Any) -> Any:
        self._check_token(context)
        try:
            take(message)
        except WireError as problem:
            self._refuse(context, problem)
        return EventReply()

    def _check_token(self, context: Any) -> None:
        wanted = self._token
        if wanted is None:
            return
        given = token_of(context.invocation_metadata()) or ""
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            self._reception.statistics.add(refused=1)
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "The server wants a token, and got none or a wrong one."
            )

    def _refuse(self, context: Any, problem: WireError) -> NoReturn:
        self._reception.statistics.add(refused=1)
        host = context.peer().rpartition(":")[0]
        self._reception.say_once(
            ("refused", host), "%s is refused; whatever else it gets wrong is only counted: %s", host, problem
        )
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem)[:1000])
        raise AssertionError("abort raises")


def _patience(context: Any) -> float | None:
    """Seconds that the client waits at a breakpoint, as far as it says so."""
    for key, value in context.invocation_metadata():
        if key == PATIENCE_KEY:
            try:
                return max(0.0, float(value))
            except ValueError:
                return None
    return None
