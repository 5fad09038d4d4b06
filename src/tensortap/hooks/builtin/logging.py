"""LoggingTensorHook: values of a run in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.hooks.builtin.names import as_fetch
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.timer import NeverTriggerTimer, SecondOrStepTimer

__all__ = ["LoggingTensorHook"]

_log = logging.getLogger("tensortap.hooks")


class LoggingTensorHook(SessionRunHook):
    """Logs tensors every so many runs or seconds, and optionally at the end.

    It counts its own runs, not the global step, and logs at the first one. Logging goes to the logger
    `tensortap.hooks` at level INFO.

    Args:
        tensors: tensors by tag, logged in the order of the tags; or an iterable of tensors, logged in order
            and tagged with their names.
        every_n_iter: log every so many runs.
        every_n_secs: log every so many seconds; exactly one of the two, or none if `at_end` is set.
        at_end: log the values of the last run when the session ends. Fetching them again would execute
            another training step, so with `at_end` the tensors are fetched in every run.
        formatter: makes the whole text from a dict of values by tag.

    Example:
        >>> import torch
        >>> import tensortap as tt
        >>> hook = LoggingTensorHook(["loss"], every_n_iter=10)
        >>> with tt.MonitoredSession(tt.torch.Session(lambda x: {"loss": x.sum()}), hooks=[hook]) as session:
        ...     _ = session.run(feed_dict={"x": torch.ones(3)})
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | Iterable[Any],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        only_at_end = at_end and every_n_iter is None and every_n_secs is None
        if not only_at_end and (every_n_iter is None) == (every_n_secs is None):
            raise ValueError(
                "Give exactly one of every_n_iter and every_n_secs, or at_end alone; got "
                f"every_n_iter={every_n_iter!r}, every_n_secs={every_n_secs!r}, at_end={at_end!r}."
            )
        if every_n_iter is not None and every_n_iter <= 0:
            raise ValueError(f"every_n_iter must be positive, got {every_n_iter}.")
        if isinstance(tensors, Mapping):
            self._tensors = {tag: tensors[tag] for tag in sorted(tensors)}
        else:
            named = [tensors] if isinstance(tensors, str) else tensors
            self._tensors = {getattr(item, "name", None) or str(item): item for item in named}
        self._formatter = formatter
        self._at_end = at_end
        self._timer: SecondOrStepTimer | NeverTriggerTimer = (
            NeverTriggerTimer()
            if only_at_end
            else SecondOrStepTimer(every_secs=every_n_secs, every_steps=every_n_iter)
        )

    def begin(self) -> None:
        """Resolve the names and start counting."""
        self._timer.reset()
        self._runs = 0
        self._last_values: dict[str, Any] | None = None
        self._fetches = {tag: as_fetch(item) for tag, item in self._tensors.items()}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the tensors if this run is to be logged."""
        self._due = self._timer.should_trigger_for_step(self._runs)
        return SessionRunArgs(self._fetches) if self._due or self._at_end else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log them."""
        if self._at_end:
            self._last_values = run_values.results
        if self._due:
            elapsed_secs, _ = self._timer.update_last_triggered_step(self._runs)
            self._write(run_values.results, elapsed_secs)
        self._runs += 1

    def end(self, session: Any) -> None:
        """Log the values of the last run, if asked to."""
        if self._at_end and self._last_values is not None:
            self._write(self._last_values, None)

    def _write(self, values: dict[str, Any], elapsed_secs: float | None) -> None:
        if self._formatter is not None:
            _log.info("%s", self._formatter(values))
            return
        with np.printoptions(suppress=True):
            text = ", ".join(f"{tag} = {value}" for tag, value in values.items())
        _log.info("%s", text if elapsed_secs is None else f"{text} ({elapsed_secs:.3f} sec)")
