"""FinalOpsHook: one last evaluation when the session ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tensortap.errors import OutOfRangeError
from tensortap.hooks.hook import SessionRunHook

__all__ = ["FinalOpsHook"]

_log = logging.getLogger("tensortap.hooks")


class FinalOpsHook(SessionRunHook):
    """Runs something at the end of the session and keeps its values.

    Args:
        final_ops: fetches in any structure, or a function of the raw session. Fetching what only the step
            computes executes the step once more; state such as parameters is just read.
        final_ops_feed_dict: feeds for that run.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> hook = FinalOpsHook({"step": "global_step:0"})
        >>> with tt.MonitoredSession(tt.torch.Session(lambda x: {"loss": x.sum()}), hooks=[hook]) as session:
        ...     _ = session.run(feed_dict={"x": torch.ones(3)})
        >>> int(hook.final_ops_values["step"])
        1
    """

    def __init__(self, final_ops: Any, final_ops_feed_dict: Mapping[Any, Any] | None = None) -> None:
        self._final_ops = final_ops
        self._feed_dict = final_ops_feed_dict
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """The values, in the structure of `final_ops`; None before the end."""
        return self._values

    def end(self, session: Any) -> None:
        """Run it."""
        if self._final_ops is None:
            return
        try:
            if callable(self._final_ops):
                self._values = self._final_ops(session)
            else:
                self._values = session.run(self._final_ops, self._feed_dict)
        except (OutOfRangeError, StopIteration):
            _log.error(
                "The final ops read beyond the end of the input. They must not depend on input that the "
                "training has used up: feed them with final_ops_feed_dict, or fetch state only."
            )
            raise
