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

__all__ = ["NonInteractiveDebugWrapperSession", "Watch", "watch_fn_of"]

Watch = WatchOptions | Callable[[Any, Any], Any]
"""What to watch in every run; or `watch_fn(fetches, feeds)`, called before each watched run, which returns it."""


class NonInteractiveDebugWrapperSession(BaseDebugWrapperSession):
    """Base of wrappers that watch every run without asking; a subclass says where the records go.

    Args:
        sess: as for `BaseDebugWrapperSession`.
        watch_fn: `WatchOptions` for all runs; or `watch_fn(fetches, feeds)`, which returns them for the coming
            run, or the older tuple `(debug_ops, node_name_regex[, op_type_regex[, dtype_regex[, tolerate]]])`,
            and may decide anew each time. Without it, the whole value of every tensor is recorded.
        thread_name_filter: as for `BaseDebugWrapperSession`.
        pass_through_operrors: as for `BaseDebugWrapperSession`.

    Raises:
        TypeError: `watch_fn` is neither.

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
        watch_fn: Watch | None = None,
        thread_name_filter: str | None = None,
        pass_through_operrors: bool | None = False,
    ) -> None:
        self._watch_fn = watch_fn_of(watch_fn)
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
        return self._watch_fn(fetches, feed_dict)


def watch_fn_of(watch: Watch | None) -> Callable[[Any, Any], WatchOptions]:
    """A function that says what to watch in the coming run, whichever way the user has said it.

    Raises:
        TypeError: it is neither `WatchOptions` nor can it be called.

    >>> watch_fn_of(WatchOptions("DebugNanCount"))("loss", None).debug_ops
    ['DebugNanCount']
    """
    if watch is None or isinstance(watch, WatchOptions):
        always = WatchOptions() if watch is None else watch
        return lambda fetches, feeds: always
    if not callable(watch):
        raise TypeError(
            "watch_fn must be WatchOptions, or a function of fetches and feeds that returns them; "
            f"got {type(watch).__name__}: {watch!r}."
        )
    return lambda fetches, feeds: as_watch_options(watch(fetches, feeds))
