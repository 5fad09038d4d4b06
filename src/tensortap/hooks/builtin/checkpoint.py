"""CheckpointSaverHook: checkpoints in regular intervals, and listeners that act around each of them."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.errors import CheckpointError
from tensortap.hooks.args import SessionRunArgs, SessionRunContext, SessionRunValues
from tensortap.hooks.builtin.names import global_step_name, read_step
from tensortap.hooks.coordinator import Coordinator
from tensortap.hooks.files import replace_file
from tensortap.hooks.finite import FiniteGuard, NonFinitePolicy, check_policy, describe, judged_already
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.summary import get_event_writer
from tensortap.hooks.timer import SecondOrStepTimer
from tensortap.seam.graph import GraphKeys

if TYPE_CHECKING:
    from tensortap.hooks.scaffold import Scaffold

__all__ = ["CheckpointSaverHook", "CheckpointSaverListener"]

_log = logging.getLogger("tensortap.hooks")


class CheckpointSaverListener:
    """Something to be done around every checkpoint, such as an evaluation.

    Example:
        >>> class Remember(CheckpointSaverListener):
        ...     def __init__(self):
        ...         self.steps = []
        ...     def after_save(self, session, global_step_value):
        ...         self.steps.append(global_step_value)
    """

    def begin(self) -> None:
        """Called once, in the hook's `begin`."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Called before a checkpoint is written."""

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        """Called after a checkpoint is written.

        Returns:
            True to stop the training; heeded for periodic checkpoints, not for the first and the last.
        """
        return None

    def end(self, session: Any, global_step_value: int) -> None:
        """Called once, when the session ends."""


class CheckpointSaverHook(SessionRunHook):
    """Saves a checkpoint when a session is created, in regular intervals, and at the end.

    A checkpoint that cannot be written raises `CheckpointError`: training on without one would risk the
    user's work. Events about it, on the other hand, are written only if possible.

    Nothing is saved of a run in which a hook has failed, wherever in the list that hook stands: the save is
    done when `after_run` of every hook has returned. And parameters that have become NaN or infinite do not
    take the place of the last good checkpoint, unless `non_finite` says so. Infinities that were there when
    the session was made are meant.

    Args:
        checkpoint_dir: where checkpoints, `graph.pbtxt` and events go.
        save_secs: save every so many seconds.
        save_steps: save every so many steps; exactly one of the two must be given.
        saver: what to save with.
        checkpoint_basename: files are named `<basename>-<step>`.
        scaffold: where to take the saver from; not together with `saver`. With neither, the one saver in
            the graph's collection is used.
        listeners: called around every save.
        save_graph_def: whether to write `graph.pbtxt`.
        steps_per_run: how far one run is expected to move the global step.
        non_finite: what to do when parameters hold NaN or infinities: "skip" this checkpoint with a warning and
            keep the last good one, "save" it with a warning, or "raise" `CheckpointError`.

    Example:
        >>> import tempfile, torch
        >>> import tensortap as tt
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     hook = CheckpointSaverHook(directory, save_steps=10, saver=tt.Saver())
        ...     step = tt.torch.Session(lambda x: {"loss": x.sum()})
        ...     with tt.MonitoredSession(step, hooks=[hook]) as session:
        ...         _ = session.run(feed_dict={"x": torch.ones(3)})
        ...     tt.latest_checkpoint(directory).name
        'model.ckpt-1'
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Any = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Scaffold | None = None,
        listeners: Iterable[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,
        *,
        steps_per_run: int = 1,
        non_finite: NonFinitePolicy = "skip",
    ) -> None:
        if saver is not None and scaffold is not None:
            raise ValueError("Give saver or scaffold, not both.")
        self._directory = Path(checkpoint_dir)
        self._prefix = self._directory / checkpoint_basename
        self._saver = saver
        self._scaffold = scaffold
        self._listeners = list(listeners or ())
        self._save_graph_def = save_graph_def
        self._steps_per_run = steps_per_run
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)
        self._non_finite = check_policy(non_finite)

    def begin(self) -> None:
        """Find the global step and open the event file."""
        self._timer.reset()
        self._guard = FiniteGuard()
        self._graph_version: int | None = None
        self._step_name = global_step_name(self)
        self._writer = get_event_writer(self._directory)
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Coordinator) -> None:
        """Save what the session starts with."""
        self._graph_version = None
        self._guard.begin(session)
        step = read_step(session, self._step_name)
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._step_name)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Save if it is time and no hook has failed."""
        if self._timer.should_trigger_for_step(int(run_values.results) + self._steps_per_run):
            run_context.on_success(lambda: self._save_if_due(run_context))

    def _save_if_due(self, run_context: SessionRunContext) -> None:
        step = read_step(run_context.session, self._step_name)
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._save(run_context.session, step):
                run_context.request_stop()

    def end(self, session: Any) -> None:
        """Save the last step unless that was done already."""
        step = read_step(session, self._step_name)
        if step != self._timer.last_triggered_step():
            self._save(session, step)
        for listener in self._listeners:
            listener.end(session, step)

    def _save(self, session: Any, step: int) -> bool:
        """Save a checkpoint; whether a listener wants to stop."""
        if not self._is_worth_saving(session, step):
            return False
        self._write_graph(session, step)
        for listener in self._listeners:
            listener.before_save(session, step)
        with judged_already():
            path = self._find_saver(session).save(session, os.fspath(self._prefix), step)
        _log.info("Saved the checkpoint %s", path)
        self._writer.add_checkpoint(str(path), step)
        self._writer.flush()
        # Every listener is called, whatever the earlier ones answer.
        answers = [listener.after_save(session, step) for listener in self._listeners]
        return any(answers)

    def _is_worth_saving(self, session: Any, step: int) -> bool:
        """Whether the state may take the place of the last checkpoint; says why not."""
        verdict = self._guard.judge(session)
        name = f"{self._prefix}-{step}"
        if not verdict.against:
            if verdict.mentioned:
                _log.warning("The checkpoint %s is saved, but %s.", name, describe(verdict.mentioned))
            return True
        found = describe(verdict.against)
        if self._non_finite == "raise":
            raise CheckpointError(f"The checkpoint {name} is not saved: {found}.")
        if self._non_finite == "save":
            _log.warning("The checkpoint %s is saved, but %s.", name, found)
            return True
        _log.warning(
            "The checkpoint %s is not saved, so that the last good one stays: %s. "
            'CheckpointSaverHook(non_finite="save") would save it all the same.',
            name,
            found,
        )
        return False

    def _write_graph(self, session: Any, step: int) -> None:
        """Write the graph if it is new; engines that learn their graph by running extend it over time."""
        version = session.graph.version
        if version == self._graph_version:
            return
        self._graph_version = version
        graph_def = session.graph_def
        if self._save_graph_def:
            text: str = importlib.import_module("google.protobuf.text_format").MessageToString(graph_def)
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                replace_file(self._directory / "graph.pbtxt", lambda file: _write_text(file, text))
            except OSError as error:
                # Only the checkpoint itself is worth stopping for.
                _log.warning("Cannot write graph.pbtxt to %s: %s", self._directory, error)
        self._writer.add_graph(graph_def, step)

    def _find_saver(self, session: Any) -> Any:
        if self._saver is not None:
            return self._saver
        if self._scaffold is not None:
            return self._scaffold.saver
        savers = session.graph.get_collection(GraphKeys.SAVERS)
        if len(savers) != 1:
            raise RuntimeError(
                f"There are {len(savers)} savers in the graph's collection {GraphKeys.SAVERS!r}; "
                "CheckpointSaverHook needs exactly one there, or one passed as saver=... or scaffold=...."
            )
        return savers[0]


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
