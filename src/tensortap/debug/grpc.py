"""Wrapper sessions that stream every run to debug servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensortap.debug.actions import OnRunStartAction, OnRunStartRequest, OnRunStartResponse
from tensortap.debug.base import check_wrappable
from tensortap.debug.guarding import Guarding
from tensortap.debug.non_interactive import NonInteractiveDebugWrapperSession, Watch
from tensortap.seam.options import RunMetadata, RunOptions
from tensortap.sink.stream_options import StreamOptions

__all__ = ["GrpcDebugWrapperSession", "TensorBoardDebugWrapperSession"]


class GrpcDebugWrapperSession(NonInteractiveDebugWrapperSession):
    """Runs a session and streams the tensors of every run to debug servers, as they are computed.

    Streaming happens in threads of its own and never holds up a run, whatever the servers do; leaving a
    with-block and `close()` wait for the last records, at most `StreamOptions.flush_secs`.

    Args:
        sess: an engine session, such as `tensortap.torch.Session`, or a `MonitoredSession`.
        grpc_debug_server_addresses: `host:port[/path]`, or a list of such, with or without `grpc://`.
        watch_fn: `WatchOptions`, or `watch_fn(fetches, feeds)` that returns them for the coming run; everything by
            default.
        thread_name_filter: regular expression for the names of threads whose runs are streamed.
        log_usage: kept for callers of the original interface; nothing is ever reported anywhere.
        stream: timeouts, pauses, bounds and token.
        send_traceback_and_source_code: also send source lines and files, whenever the graph has grown.
        budget: as for `GrpcDebugHook`.

    Raises:
        MissingExtraError: gRPC is not installed.
        TypeError: addresses that are neither text nor a list of text.
        ValueError: an address without a port.

    >>> import torch, tensortap as tt
    >>> session = GrpcDebugWrapperSession(
    ...     tt.torch.Session(lambda x: {"y": x + 1}), "localhost:1", stream=tt.StreamOptions(connect_timeout_secs=0.1)
    ... )
    >>> with session:  # nobody listens there, which the step does not notice
    ...     result = session.run("y", {"x": torch.ones(2)})
    >>> result
    array([2., 2.], dtype=float32)
    """

    def __init__(
        self,
        sess: Any,
        grpc_debug_server_addresses: str | Sequence[str],
        watch_fn: Watch | None = None,
        thread_name_filter: str | None = None,
        log_usage: bool = True,
        *,
        pass_through_operrors: bool | None = None,
        stream: StreamOptions | None = None,
        send_traceback_and_source_code: bool = False,
        budget: float | None = None,
    ) -> None:
        # Imported here: gRPC is of no use to programs that only dump, and need not be installed.
        from tensortap.debug.streaming import Streamer

        check_wrappable(sess)
        self._guarding = None if budget is None else Guarding(budget)
        self._streamer: Streamer = Streamer(
            grpc_debug_server_addresses, stream, send_traceback_and_source_code
        )
        super().__init__(sess, watch_fn, thread_name_filter, pass_through_operrors)

    def prepare_run_debug_urls(self, fetches: Any, feed_dict: Any) -> str | list[str]:
        """The `grpc://` URLs of the servers."""
        return list(self._streamer.urls)

    def on_run_start(self, request: OnRunStartRequest) -> OnRunStartResponse:
        """Stream the run, unless all servers are down."""
        urls = self._streamer.urls_for_run()
        if not urls or (self._guarding is not None and not self._guarding.begins(self._sess)):
            return OnRunStartResponse(OnRunStartAction.NON_DEBUG_RUN, [])
        watch = self.watch_options(request.fetches, request.feed_dict)
        return OnRunStartResponse(OnRunStartAction.DEBUG_RUN, urls, watch=watch)

    def run(
        self,
        fetches: Any = None,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        callable_runner: Callable[..., Any] | None = None,
        callable_runner_args: Sequence[Any] | None = None,
    ) -> Any:
        """Run the wrapped session and stream the run; arguments as for `BaseDebugWrapperSession.run`."""
        try:
            return super().run(
                fetches, feed_dict, options, run_metadata, callable_runner, callable_runner_args
            )
        finally:
            if self._guarding is not None:
                self._guarding.ended()
            self._streamer.send_program(self, fetches, feed_dict)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the servers have all runs so far; False if the timeout, in seconds, passed first."""
        return self._streamer.flush(timeout)

    def close(self) -> None:
        """Close the wrapped session and wait for the records of its runs."""
        try:
            super().close()
        finally:
            self._streamer.close()

    def __exit__(self, exec_type: Any, exec_value: Any, exec_tb: Any) -> None:
        super().__exit__(exec_type, exec_value, exec_tb)
        self._streamer.close()


class TensorBoardDebugWrapperSession(GrpcDebugWrapperSession):
    """Streams to a debugger with a user interface, which chooses the tensors it wants to see.

    Every tensor is watched with `DebugIdentity(gated_grpc=true)`: its value is sent while the server asks for
    it, and the run waits where the server has set a breakpoint.

    Args:
        sess: as for `GrpcDebugWrapperSession`.
        grpc_debug_server_addresses: as for `GrpcDebugWrapperSession`.
        thread_name_filter: as for `GrpcDebugWrapperSession`.
        send_traceback_and_source_code: send source lines and files, whenever the graph has grown.
        log_usage: kept for callers of the original interface; nothing is ever reported anywhere.
        stream: as for `GrpcDebugWrapperSession`.

    >>> import torch, tensortap as tt
    >>> session = TensorBoardDebugWrapperSession(
    ...     tt.torch.Session(lambda x: {"y": x + 1}), "localhost:1", stream=tt.StreamOptions(connect_timeout_secs=0.1)
    ... )
    >>> with session:
    ...     result = session.run("y", {"x": torch.ones(2)})
    """

    def __init__(
        self,
        sess: Any,
        grpc_debug_server_addresses: str | Sequence[str],
        thread_name_filter: str | None = None,
        send_traceback_and_source_code: bool = True,
        log_usage: bool = True,
        *,
        pass_through_operrors: bool | None = None,
        stream: StreamOptions | None = None,
    ) -> None:
        from tensortap.debug.streaming import gated_watch

        super().__init__(
            sess,
            grpc_debug_server_addresses,
            gated_watch,
            thread_name_filter,
            log_usage,
            pass_through_operrors=pass_through_operrors,
            stream=stream,
            send_traceback_and_source_code=send_traceback_and_source_code,
        )
