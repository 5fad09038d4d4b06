"""MonitoredTrainingSession: a monitored session with the hooks that most training runs want."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

from tensortap.hooks.builtin.checkpoint import CheckpointSaverHook
from tensortap.hooks.builtin.counter import StepCounterHook
from tensortap.hooks.builtin.summary_saver import SummarySaverHook
from tensortap.hooks.creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from tensortap.hooks.finite import NonFinitePolicy
from tensortap.hooks.hook import check_hooks
from tensortap.hooks.monitored import MonitoredSession
from tensortap.hooks.scaffold import Scaffold

__all__ = ["USE_DEFAULT", "MonitoredTrainingSession"]


class _UseDefault:
    def __repr__(self) -> str:
        return "USE_DEFAULT"


USE_DEFAULT: Final = _UseDefault()
"""Stands for "not given", because None means "never"."""

DEFAULT_CHECKPOINT_SECS = 600
DEFAULT_SUMMARY_STEPS = 100

_Directory = str | os.PathLike[str]


def MonitoredTrainingSession(
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: _Directory | None = None,
    scaffold: Scaffold | None = None,
    hooks: Iterable[Any] | None = None,
    chief_only_hooks: Iterable[Any] | None = None,
    save_checkpoint_secs: float | _UseDefault | None = USE_DEFAULT,
    save_summaries_steps: int | _UseDefault | None = USE_DEFAULT,
    save_summaries_secs: float | _UseDefault | None = USE_DEFAULT,
    config: Any = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: int | _UseDefault | None = USE_DEFAULT,
    summary_dir: _Directory | None = None,
    save_graph_def: bool = True,
    *,
    session: Any,
    max_recoveries: int | None = 10,
    recovery_backoff_secs: float = 1.0,
    non_finite_checkpoints: NonFinitePolicy = "skip",
) -> MonitoredSession:
    """A `MonitoredSession` for training: restores, counts steps, and saves summaries and checkpoints.

    On the chief the hooks are, in this order: `chief_only_hooks`, a step counter, a summary saver, a
    checkpoint saver, then `hooks`. The savers exist only if there is a directory to write to. Other workers
    wait for the chief and call only `hooks`.

    Args:
        master: accepted for callers of the original interface.
        is_chief: whether this process initialises the model and writes files.
        checkpoint_dir: restore from and save to this directory.
        scaffold: pieces of the initialisation.
        hooks: the user's hooks.
        chief_only_hooks: further hooks for the chief.
        save_checkpoint_secs: seconds between checkpoints, 600 by default; None for never. If both seconds and
            steps are given, seconds win.
        save_summaries_steps: steps between summaries, 100 by default; None for never.
        save_summaries_secs: seconds between summaries instead; wins over steps.
        config: accepted for callers of the original interface.
        stop_grace_period_secs: how long threads may take to stop when the session closes.
        log_step_count_steps: steps between two measurements of the speed; None or 0 for never.
        max_wait_secs: how long a worker waits for the chief.
        save_checkpoint_steps: steps between checkpoints instead of seconds.
        summary_dir: where summaries go; `checkpoint_dir` by default.
        save_graph_def: whether to write `graph.pbtxt` beside the checkpoints.
        session: an engine session, or a function without arguments that makes one.
        max_recoveries: how many recoveries in a row without a completed run, as in `MonitoredSession`.
        recovery_backoff_secs: how long they wait, as in `MonitoredSession`.
        non_finite_checkpoints: whether to "skip" checkpoints of parameters that hold NaN or infinities, to "save"
            them with a warning, or to "raise"; see `CheckpointSaverHook`.

    Example:
        >>> import tempfile, torch
        >>> import tensortap as tt
        >>> step = tt.torch.Session(lambda x: {"loss": x.sum()})
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with MonitoredTrainingSession(checkpoint_dir=directory, session=step) as training:
        ...         _ = training.run(feed_dict={"x": torch.ones(3)})
        ...     tt.latest_checkpoint(directory).name
        'model.ckpt-1'
    """
    scaffold = scaffold or Scaffold()
    user_hooks = check_hooks(hooks)
    recovery: dict[str, Any] = {
        "max_recoveries": max_recoveries,
        "recovery_backoff_secs": recovery_backoff_secs,
    }
    creator: SessionCreator
    if not is_chief:
        creator = WorkerSessionCreator(scaffold, master, config, max_wait_secs=max_wait_secs, session=session)
        return MonitoredSession(creator, user_hooks, stop_grace_period_secs, **recovery)

    summary_steps, summary_secs = _period(
        save_summaries_steps, save_summaries_secs, default_steps=DEFAULT_SUMMARY_STEPS
    )
    checkpoint_steps, checkpoint_secs = _period(
        save_checkpoint_steps, save_checkpoint_secs, default_secs=DEFAULT_CHECKPOINT_SECS
    )
    all_hooks = check_hooks(chief_only_hooks)
    summary_dir = summary_dir or checkpoint_dir
    if summary_dir:
        if log_step_count_steps:
            all_hooks.append(StepCounterHook(every_n_steps=log_step_count_steps, output_dir=summary_dir))
        if summary_steps or summary_secs:
            all_hooks.append(
                SummarySaverHook(
                    save_steps=summary_steps,
                    save_secs=summary_secs,
                    output_dir=summary_dir,
                    scaffold=scaffold,
                )
            )
    if checkpoint_dir and (checkpoint_steps or checkpoint_secs):
        all_hooks.append(
            CheckpointSaverHook(
                checkpoint_dir,
                save_secs=checkpoint_secs,
                save_steps=checkpoint_steps,
                scaffold=scaffold,
                save_graph_def=save_graph_def,
                non_finite=non_finite_checkpoints,
            )
        )
    creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, session=session)
    return MonitoredSession(creator, [*all_hooks, *user_hooks], stop_grace_period_secs, **recovery)


def _period(
    steps: int | _UseDefault | None,
    secs: float | _UseDefault | None,
    default_steps: int | None = None,
    default_secs: float | None = None,
) -> tuple[int | None, float | None]:
    """(steps, secs) of which at most one is set: giving one of the pair switches the other off."""
    if isinstance(steps, _UseDefault) and isinstance(secs, _UseDefault):
        return default_steps, default_secs
    if isinstance(secs, _UseDefault):
        secs = None
    if isinstance(steps, _UseDefault) or secs:
        steps = None
    return steps or None, secs or None
