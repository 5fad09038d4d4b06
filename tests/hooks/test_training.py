"""MonitoredTrainingSession: which hooks, in which order, with which periods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensortap.errors import AbortedError
from tensortap.hooks.builtin.checkpoint import CheckpointSaverHook
from tensortap.hooks.builtin.counter import StepCounterHook
from tensortap.hooks.builtin.stopping import StopAtStepHook
from tensortap.hooks.builtin.summary_saver import SummarySaverHook
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.monitored import MonitoredSession
from tensortap.hooks.saver import latest_checkpoint
from tensortap.hooks.training import USE_DEFAULT, MonitoredTrainingSession

from .conftest import FakeClock
from .counter_session import CounterSession


def hooks_of(session: MonitoredSession) -> list[Any]:
    session.close()
    return session._hooks


def periods(session: MonitoredSession, kind: type) -> tuple[float | None, float | None] | None:
    """(steps, secs) of the hook of one kind."""
    for hook in hooks_of(session):
        if isinstance(hook, kind):
            return hook._timer._every_steps, hook._timer._every_secs  # type: ignore[attr-defined]
    return None


def training(directory: Path | None = None, **kwargs: Any) -> MonitoredSession:
    return MonitoredTrainingSession(checkpoint_dir=directory, session=CounterSession(), **kwargs)


def test_order_of_hooks(tmp_path: Path) -> None:  # A51
    first, last = SessionRunHook(), SessionRunHook()
    hooks = hooks_of(training(tmp_path, hooks=[last], chief_only_hooks=[first]))
    assert [type(each) for each in hooks[1:-1]] == [StepCounterHook, SummarySaverHook, CheckpointSaverHook]
    assert (hooks[0], hooks[-1]) == (first, last)


def test_no_directory_no_default_hooks() -> None:  # A51
    assert hooks_of(training()) == []


def test_summary_dir_alone(tmp_path: Path) -> None:  # A51
    hooks = hooks_of(training(summary_dir=tmp_path))
    assert [type(each) for each in hooks] == [StepCounterHook, SummarySaverHook]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (None, 600)),
        ({"save_checkpoint_steps": 7}, (7, None)),
        ({"save_checkpoint_secs": 7}, (None, 7)),
        ({"save_checkpoint_secs": 7, "save_checkpoint_steps": 9}, (None, 7)),  # A52 X24: seconds win
        ({"save_checkpoint_secs": None, "save_checkpoint_steps": 9}, (9, None)),
        ({"save_checkpoint_secs": None, "save_checkpoint_steps": None}, None),
        ({"save_checkpoint_secs": None}, None),
        ({"save_checkpoint_secs": USE_DEFAULT}, (None, 600)),
    ],
)
def test_checkpoint_periods(tmp_path: Path, given: Any, expected: Any) -> None:  # A51 A52
    assert periods(training(tmp_path, **given), CheckpointSaverHook) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (100, None)),
        ({"save_summaries_steps": 7}, (7, None)),
        ({"save_summaries_secs": 7}, (None, 7)),
        ({"save_summaries_secs": 7, "save_summaries_steps": 9}, (None, 7)),
        ({"save_summaries_secs": None, "save_summaries_steps": None}, None),
        ({"save_summaries_steps": None}, None),
    ],
)
def test_summary_periods(tmp_path: Path, given: Any, expected: Any) -> None:  # A51
    assert periods(training(tmp_path, **given), SummarySaverHook) == expected


@pytest.mark.parametrize(("given", "expected"), [(100, (100, None)), (7, (7, None)), (None, None), (0, None)])
def test_step_counter_period(tmp_path: Path, given: Any, expected: Any) -> None:  # A51
    assert periods(training(tmp_path, log_step_count_steps=given), StepCounterHook) == expected


def test_workers_call_only_the_users_hooks(tmp_path: Path) -> None:  # A53
    mine, chiefs = SessionRunHook(), SessionRunHook()
    session = training(tmp_path, is_chief=False, hooks=[mine], chief_only_hooks=[chiefs])
    assert hooks_of(session) == [mine]
    assert list(tmp_path.iterdir()) == []


def test_training_goes_on_after_a_restart(
    tmp_path: Path,
) -> None:  # A edge cases: last_step, num_steps, restart
    for expected in (3, 6):
        raw = CounterSession()
        with MonitoredTrainingSession(
            checkpoint_dir=tmp_path, hooks=[StopAtStepHook(num_steps=3)], session=raw
        ) as session:
            while not session.should_stop():
                session.run("y")
        assert raw.global_step == expected
    raw = CounterSession()
    with MonitoredTrainingSession(
        checkpoint_dir=tmp_path, hooks=[StopAtStepHook(last_step=8)], session=raw
    ) as session:
        while not session.should_stop():
            session.run("y")
    assert raw.global_step == 8
    assert latest_checkpoint(tmp_path) == tmp_path / "model.ckpt-8"


def test_recoveries_are_counted_as_in_a_monitored_session(clock: FakeClock) -> None:  # X6
    raw = CounterSession(failures=[AbortedError(None, None, "gone")] * 9)
    for is_chief in (True, False):
        with (
            pytest.raises(AbortedError, match="gone"),
            MonitoredTrainingSession(
                session=raw, is_chief=is_chief, max_recoveries=3, recovery_backoff_secs=5
            ) as session,
        ):
            session.run("y")
    assert clock.slept == [5, 10, 5, 10]
