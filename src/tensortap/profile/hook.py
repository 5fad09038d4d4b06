"""ProfilerHook: a Chrome trace of a step every so often."""

from __future__ import annotations

import logging
import operator
import os
from numbers import Real
from typing import Any, SupportsIndex

from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.hooks.builtin.names import global_step_name, read_step
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.timer import SecondOrStepTimer
from tensortap.profile.writer import ProfileWriter
from tensortap.seam.options import RunOptions, TraceLevel

__all__ = ["ProfilerHook"]

log = logging.getLogger("tensortap.profile")

FLUSH_SECS = 60.0
"""How long the end of a session waits for its last traces."""


class ProfilerHook(SessionRunHook):
    """Profiles a step every N steps or seconds: what ran when, from which inputs, with how much memory.

    Each profiled step becomes a file `timeline-<step>.json`, a Chrome trace for Perfetto (ui.perfetto.dev),
    chrome://tracing and `tensortap profile`, and run metadata `step_<step>` in an event file, for the graph
    dashboard of TensorBoard. The first run is never profiled. Files are written by a thread of their own; the
    end of the session waits for it. What cannot be written is counted and logged, and training goes on.

    Args:
        save_steps: profile every so many steps.
        save_secs: profile every so many seconds; exactly one of the two must be given.
        output_dir: where files go, the current directory by default; a program that changes directory later moves
            nothing. Sessions and ranks may share it.
        show_dataflow: draw arrows from the producers of tensors to their consumers.
        show_memory: record allocations, and draw sizes and lifetimes of tensors.
        start_step: profile no step before this one.
        stop_step: profile no step after this one.
        max_files: stop profiling after so many steps.
        max_bytes: largest size of a trace, before compression; what does not fit is left out and named in it.
        stacks: tell all of the user's lines that led to an op, instead of the innermost.
        gzip: write `timeline-<step>.json.gz`.

    Raises:
        ValueError: none or both of `save_steps` and `save_secs`, or a number that makes no sense.

    >>> import tempfile, torch, tensortap as tt
    >>> from pathlib import Path
    >>> traces = Path(tempfile.mkdtemp())
    >>> step = tt.torch.Session(lambda x: {"y": (x @ x).relu()})
    >>> with tt.MonitoredSession(step, hooks=[ProfilerHook(save_steps=2, output_dir=traces)]) as session:
    ...     for _ in range(5):
    ...         result = session.run("y", {"x": torch.ones(3, 3)})
    >>> sorted(path.name for path in traces.glob("*.json"))
    ['timeline-2.json', 'timeline-4.json']
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | os.PathLike[str] = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
        *,
        start_step: int | None = None,
        stop_step: int | None = None,
        max_files: int | None = None,
        max_bytes: int | None = None,
        stacks: bool = False,
        gzip: bool = False,
    ) -> None:
        if (save_steps is None) == (save_secs is None):
            raise ValueError(
                "ProfilerHook needs exactly one of save_steps and save_secs, got "
                f"save_steps={save_steps!r} and save_secs={save_secs!r}."
            )
        save_steps = _whole("save_steps", save_steps, least=1)
        start_step, stop_step = _whole("start_step", start_step), _whole("stop_step", stop_step)
        max_files = _whole("max_files", max_files, least=1)
        max_bytes = _whole("max_bytes", max_bytes, least=1)
        if save_secs is not None and not _is_duration(save_secs):
            raise ValueError(f"save_secs={save_secs!r}: expected a number of seconds.")
        if start_step is not None and stop_step is not None and stop_step < start_step:
            raise ValueError(f"stop_step={stop_step} comes before start_step={start_step}.")
        self._timer = SecondOrStepTimer(every_steps=save_steps, every_secs=save_secs)
        self._start_step, self._stop_step = start_step, stop_step
        self._files_left = max_files
        self._options = RunOptions(trace_level=TraceLevel.FULL_TRACE, trace_memory=show_memory)
        self._writer = ProfileWriter(
            output_dir,
            show_dataflow=show_dataflow,
            show_memory=show_memory,
            max_bytes=max_bytes,
            gzip=gzip,
            stacks=stacks,
        )

    @property
    def dropped(self) -> int:
        """How many profiled steps could not be written."""
        return self._writer.dropped

    def begin(self) -> None:
        """Find the global step.

        Raises:
            RuntimeError: the engine keeps none.
        """
        self._timer.reset()
        self._next_step: int | None = None
        self._traces = False
        self._step_name = global_step_name(self)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Show TensorBoard what is known of the graph."""
        self._writer.add_graph(session.graph)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Ask for a trace if the coming step is due."""
        self._traces = self._is_due(self._next_step)
        return SessionRunArgs(self._step_name, options=self._options if self._traces else None)

    def _is_due(self, step: int | None) -> bool:
        if step is None or self._files_left == 0:
            return False
        if self._start_step is not None and step < self._start_step:
            return False
        if self._stop_step is not None and step > self._stop_step:
            return False
        return self._timer.should_trigger_for_step(step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Hand the trace of the run to the writer."""
        before = int(run_values.results)
        if self._next_step is None:  # the first run only starts the clock
            self._timer.update_last_triggered_step(before)
        step = before + 1
        if self._traces:
            step = read_step(run_context.session, self._step_name)
            self._timer.update_last_triggered_step(step)
            self._save(run_context, run_values, step)
        self._next_step = step + 1

    def _save(self, run_context: SessionRunContext, run_values: SessionRunValues, step: int) -> None:
        metadata = run_values.run_metadata
        profile = None if metadata is None else metadata.profile
        if profile is None:  # the engine has said why
            return
        if self._files_left is not None:
            self._files_left -= 1
        self._writer.submit(profile, step, run_context.session.graph)

    def flush(self, timeout: float | None = FLUSH_SECS) -> bool:
        """Wait until all traces so far are on disk; False if the timeout, in seconds, passed first."""
        return self._writer.drain(timeout)

    def end(self, session: Any) -> None:
        """Wait for the traces of the session."""
        self._finish()

    def on_error(self, session: Any, error: BaseException) -> None:
        """Wait for the traces of the runs before the one that failed."""
        self._finish()

    def _finish(self) -> None:
        if not self.flush():
            log.error("Traces are still being written %g s after the end of the session.", FLUSH_SECS)
        if self.dropped:
            log.error("%d profiled steps could not be written.", self.dropped)


def _whole(name: str, given: SupportsIndex | None, least: int | None = None) -> int | None:
    """An argument that is a whole number, of whatever type, or None. Wrong ones are refused here, not in the loop."""
    if given is None:
        return None
    try:
        number = operator.index(given)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        from_here = "" if least is None else f" from {least} on"
        raise ValueError(f"{name}={given!r}: expected a whole number{from_here}.")
    return number


def _is_duration(given: object) -> bool:
    return isinstance(given, Real) and float(given) >= 0
