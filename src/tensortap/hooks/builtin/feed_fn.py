"""FeedFnHook: feeds made anew for every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensortap.hooks.args import SessionRunArgs, SessionRunContext
from tensortap.hooks.hook import SessionRunHook

__all__ = ["FeedFnHook"]


class FeedFnHook(SessionRunHook):
    """Calls a function before every run and feeds what it returns.

    Args:
        feed_fn: returns a feed dict.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> hook = FeedFnHook(lambda: {"x": torch.ones(3)})
        >>> with tt.MonitoredSession(tt.torch.Session(lambda x: {"loss": x.sum()}), hooks=[hook]) as session:
        ...     float(session.run("loss"))
        3.0
    """

    def __init__(self, feed_fn: Callable[[], Mapping[Any, Any]]) -> None:
        self.feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Feed it."""
        return SessionRunArgs(fetches=None, feed_dict=self.feed_fn())
