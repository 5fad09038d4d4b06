"""Wrapper sessions that ask nobody: a `watch_fn` decides what to watch, a subclass where the records go."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from tensortap.debug.actions import (
    OnRunEndRequest,
    OnRunEndResponse,
    OnRunStartAction,
    OnRunStartRequest,
    OnRunStartResponse,
    OnSessionInitAction,
    OnSessionInitRequest,
    OnSessionInitResponse,
)
from tensortap.debug.base import BaseDebugWrapperSession
from tensortap.watch.options import WatchOptions, as_watch_options

__all__ = ["NonInteractiveDebugWrapperSession", "WatchFn", "check_watch_fn"]

WatchFn = Callable[[Any, Any], Any]
"""`watch_fn(fetches, feeds)`: called before each watched run; returns `WatchOptions`."""


class NonInteractiveDebugWrapperSession(BaseDebugWrapperSession):
    """Base of wrappers that watch every run without asking; a subclass says where the records go.

    Args:
        sess: as for `BaseDebugWrapperSession`.
        watch_fn: `watch_fn(fetches, feeds)` returns `WatchOptions` for the coming run, or the older tuple
            `(debug_ops, node_name_regex[, op_type_regex[, dtype_regex[, tolerate]]])`. It may decide anew
            each time. Without it, the whole value of every tensor is recorded.
        thread_name_filter: as for `BaseDebugWrapperSession`.
        pass_through_operrors: as for `BaseDebugWrapperSession`.

    Raises:
        TypeError: `watch_fn` cannot be called.

    >>> import tensortap as tt
    >>> from tensortap.sink.memory import collect
    >>> class InMemory(NonInteractiveDebugWrapperSession):
    ...     def prepare_run_debug_urls(self, fetches, feed_dict):
    ...         return "memcbk:///seen"
    >>> with collect("seen") as records:
    ...     session = InMemory(tt.torch.Session(lambda x: {"y": x + 1}))
    """

    def __init__(
        self,
        sess: Any,
        watch_fn: WatchFn | None = None,
        thread_name_filter: str | None = None,
        pass_through_operrors: bool | None = False,
    ) -> None:
        self._watch_fn = check_watch_fn(watch_fn)
        super().__init__(sess, thread_name_filter, pass_through_operrors)

    def on_session_init(self, request: OnSessionInitRequest) -> OnSessionInitResponse:
        """Go on."""
        return OnSessionInitResponse(OnSessionInitAction.PROCEED)

    @abstractmethod
    def prepare_run_debug_urls(self, fetches: Any, feed_dict: Any) -> str | list[str]:
        """Where the records of the coming run go.

        Args:
            fetches: the caller's fetches.
            feed_dict: the caller's feeds.

        Returns:
            One URL or a list of them.
        """

    def on_run_start(self, request: OnRunStartRequest) -> OnRunStartResponse:
        """Watch the run, as `watch_fn` says."""
        urls = self.prepare_run_debug_urls(request.fetches, request.feed_dict)
        return OnRunStartResponse(
            OnRunStartAction.DEBUG_RUN,
            [urls] if isinstance(urls, str) else list(urls),
            watch=self.watch_options(request.fetches, request.feed_dict),
        )

    def on_run_end(self, request: OnRunEndRequest) -> OnRunEndResponse:
        """Nothing more to do."""
        return OnRunEndResponse()

    def watch_options(self, fetches: Any, feed_dict: Any) -> WatchOptions:
        """What to watch in the coming run."""
        return (
            WatchOptions() if self._watch_fn is None else as_watch_options(self._watch_fn(fetches, feed_dict))
        )


def check_watch_fn(watch_fn: WatchFn | None) -> WatchFn | None:
    """Refuse a `watch_fn` that cannot be called."""
    if watch_fn is not None and not callable(watch_fn):
        raise TypeError(
            f"watch_fn must be a function of fetches and feeds, got {type(watch_fn).__name__}: {watch_fn!r}."
        )
    return watch_fn
