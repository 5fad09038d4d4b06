"""SummarySaverHook: values of a run as TensorBoard summaries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.hooks.builtin.names import as_fetch, global_step_name, read_step
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.summary import get_event_writer
from tensortap.hooks.timer import SecondOrStepTimer
from tensortap.hooks.writers import as_summary_writer

if TYPE_CHECKING:
    from tensortap.hooks.scaffold import Scaffold

__all__ = ["SummarySaverHook"]


class SummarySaverHook(SessionRunHook):
    """Writes summaries at the first run and then every so many steps or seconds.

    A number becomes a scalar, an array a histogram; `Summary` messages, or their bytes, are written as they
    are. Without a place to write to, the hook does nothing.

    Args:
        save_steps: write every so many steps.
        save_secs: write every so many seconds; exactly one of the two must be given.
        output_dir: where the event file goes.
        summary_writer: a writer to use instead: any with `add_scalar(tag, value, step)`, PyTorch's
            `SummaryWriter` too.
        scaffold: where to take `summary_op` from.
        summary_op: what to fetch: one item, a list, or a dict by tag. Exactly one of this and `scaffold`.

    Example:
        >>> import tempfile, torch
        >>> import tensortap as tt
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     hook = SummarySaverHook(save_steps=10, output_dir=directory, summary_op="loss")
        ...     step = tt.torch.Session(lambda x: {"loss": x.sum()})
        ...     with tt.MonitoredSession(step, hooks=[hook]) as session:
        ...         _ = session.run(feed_dict={"x": torch.ones(3)})
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        summary_writer: Any = None,
        scaffold: Scaffold | None = None,
        summary_op: Any = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise ValueError("Give exactly one of scaffold and summary_op.")
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)
        self._output_dir = output_dir
        self._writer = as_summary_writer(summary_writer)
        self._scaffold = scaffold
        self._summary_op = summary_op

    def begin(self) -> None:
        """Find the global step and open the event file."""
        self._timer.reset()
        self._next_step: int | None = None
        self._due = False
        self._lag = 0
        self._step_name = global_step_name(self)
        if self._writer is None and self._output_dir:
            self._writer = get_event_writer(self._output_dir)

    def _summaries(self) -> dict[str, Any]:
        """Fetches by tag; looked up late, because a scaffold is finalised after `begin`."""
        op = self._summary_op if self._scaffold is None else self._scaffold.summary_op
        if op is None:
            return {}
        if isinstance(op, Mapping):
            return dict(op)
        items = list(op) if isinstance(op, (list, tuple)) else [op]
        return {_tag(item): item for item in items}

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Resolve the names."""
        with session.graph.as_default():
            self._fetches = {tag: as_fetch(item) for tag, item in self._summaries().items()}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the summaries if they are due."""
        if self._writer is None:
            return None
        self._due = self._next_step is None or self._timer.should_trigger_for_step(self._next_step)
        fetches: dict[str, Any] = {"step": self._step_name}
        if self._due and self._fetches:
            fetches["summaries"] = self._fetches
        return SessionRunArgs(fetches)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write them."""
        if self._writer is None:
            return
        fetched_step = int(run_values.results["step"])
        step = fetched_step + self._lag
        if self._due:
            # What a run fetches is the step before it on some engines and after it on others.
            step = read_step(run_context.session, self._step_name)
            self._lag = step - fetched_step
            if self._next_step is None:
                self._writer.add_session_start(step)
            self._timer.update_last_triggered_step(step)
            for tag, value in run_values.results.get("summaries", {}).items():
                self._writer.add_value(tag, value, step)
        self._next_step = step + 1

    def end(self, session: Any) -> None:
        """Make what was written visible."""
        if self._writer is not None:
            self._writer.flush()


def _tag(item: Any) -> str:
    name = getattr(item, "name", None)
    return name if isinstance(name, str) else str(item)
