"""Preemption: when a session is made anew, how often, how fast, and in which state."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from tensortap.errors import AbortedError, UnavailableError
from tensortap.hooks.builtin.checkpoint import CheckpointSaverHook
from tensortap.hooks.creators import ChiefSessionCreator
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.monitored import MonitoredSession
from tensortap.hooks.scaffold import Scaffold

from .conftest import FakeClock
from .counter_session import CounterSession


def aborted() -> AbortedError:
    return AbortedError(None, "preempted")


class Sessions:
    """A factory whose sessions share one list of failures."""

    def __init__(self, *failures: Any) -> None:
        self.failures = iter(failures)
        self.made: list[CounterSession] = []

    def __call__(self) -> CounterSession:
        self.made.append(CounterSession(failures=self.failures))
        return self.made[-1]


class Creations(SessionRunHook):
    def __init__(self) -> None:
        self.coords: list[Any] = []

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.coords.append(coord)


@pytest.mark.parametrize("error", [aborted(), UnavailableError(None, "away")])
def test_a_run_is_repeated_on_a_new_session(error: Exception) -> None:  # A29 A32 A33
    sessions, hook = Sessions(None, error), Creations()
    with MonitoredSession(sessions, [hook]) as session:
        session.run("y")
        assert session.run(["y", "global_step:0"]) == [2, 1]  # 2 without the preemption
        assert [each.closed for each in sessions.made] == [True, False]
        assert session.graph is sessions.made[0].graph is sessions.made[1].graph
    assert len(set(map(id, hook.coords))) == 2


def test_a_ready_session_is_opened_again_and_keeps_its_state() -> None:  # A32
    raw = CounterSession(failures=[None, aborted()])
    with MonitoredSession(raw) as session:
        session.run("y")
        assert session.run(["y", "global_step:0"]) == [2, 2]
    assert raw.closed


def test_the_last_checkpoint_is_restored(tmp_path: Path) -> None:  # A32 B18
    scaffold = Scaffold()
    saver = CheckpointSaverHook(tmp_path, save_steps=2, scaffold=scaffold)
    sessions = Sessions(None, None, None, aborted())
    creator = ChiefSessionCreator(scaffold, checkpoint_dir=tmp_path, session=sessions)
    with MonitoredSession(creator, [saver]) as session:
        for _ in range(3):
            session.run("y")
        assert session.run(["y", "global_step:0"]) == [2, 3]
    assert [each.global_step for each in sessions.made] == [3, 3]


def test_close_errors_of_a_preempted_session_are_not_raised() -> None:  # A29
    def make() -> CounterSession:
        made.append(CounterSession(failures=[] if made else [aborted()], close_error=OSError("close")))
        return made[-1]

    made: list[CounterSession] = []
    with MonitoredSession(make) as session:
        assert session.run("y") == 2
    assert len(made) == 2


def test_the_first_retry_is_immediate_and_later_ones_wait_longer(clock: FakeClock) -> None:  # X6
    sessions = Sessions(*[aborted() for _ in range(9)])
    with MonitoredSession(sessions, recovery_backoff_secs=0.5) as session:
        session.run("y")
    assert clock.slept == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_it_gives_up_after_too_many_in_a_row() -> None:  # X6
    sessions, planted = Sessions(*[aborted() for _ in range(20)]), None
    with pytest.raises(AbortedError) as caught, MonitoredSession(sessions, max_recoveries=3) as session:
        session.run("y")
    planted = caught.value
    assert planted.__notes__ == ["Gave up after 3 recoveries in a row without a completed run."]
    assert len(sessions.made) == 4
    assert all(each.closed for each in sessions.made)


def test_a_completed_run_starts_the_count_again(clock: FakeClock) -> None:  # X6
    sessions = Sessions(*[aborted() if n % 2 else None for n in range(40)])
    with MonitoredSession(sessions, max_recoveries=1) as session:
        for _ in range(20):
            session.run("y")
    assert clock.slept == []


def test_runs_inside_a_step_function_are_no_progress_until_it_completes() -> None:  # X6 A40
    sessions = Sessions(*[aborted() if n % 2 else None for n in range(40)])

    def step(step_context: Any) -> None:
        step_context.run_with_hooks("y")
        step_context.run_with_hooks("y")

    with pytest.raises(AbortedError), MonitoredSession(sessions, max_recoveries=2) as session:
        session.run_step_fn(step)


def test_there_may_be_no_limit(clock: FakeClock) -> None:  # A31
    with MonitoredSession(Sessions(*[aborted() for _ in range(200)]), max_recoveries=None) as session:
        assert session.run("y") == 2
    assert max(clock.slept) == 30.0


def test_there_may_be_no_recovery() -> None:
    with pytest.raises(AbortedError), MonitoredSession(Sessions(aborted()), max_recoveries=0) as session:
        session.run("y")


@pytest.mark.parametrize("wrong", [{"max_recoveries": -1}, {"recovery_backoff_secs": -1.0}])
def test_negative_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        MonitoredSession(CounterSession(), **wrong)


def test_creation_is_retried_too(clock: FakeClock) -> None:  # A12
    def make() -> CounterSession:
        if next(failures):
            raise aborted()
        return CounterSession()

    failures = iter([True, True, False])
    with MonitoredSession(make) as session:
        assert session.run("y") == 2
    assert clock.slept == [1.0]


def test_creation_is_not_retried_for_ever() -> None:  # A12 X6
    def make() -> CounterSession:
        raise aborted()

    with pytest.raises(AbortedError, match="preempted"):
        MonitoredSession(make, max_recoveries=2)


def test_waiting_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:  # X6
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tensortap.hooks.recovery.sleep", interrupted)
    sessions = Sessions(aborted(), aborted())
    with pytest.raises(KeyboardInterrupt), MonitoredSession(sessions) as session:
        session.run("y")
    assert all(each.closed for each in sessions.made)


def report_in_thread(coord: Any, error: Exception) -> None:
    def work() -> None:
        with coord.stop_on_exception():
            raise error

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_should_stop_recovers_from_a_threads_preemption() -> None:  # A34
    sessions, hook = Sessions(), Creations()
    with MonitoredSession(sessions, [hook]) as session:
        report_in_thread(hook.coords[-1], aborted())
        assert not session.should_stop()
        assert len(sessions.made) == 2


def test_should_stop_never_raises_even_if_recovery_fails() -> None:  # A34 X6
    hook = Creations()
    session = MonitoredSession(Sessions(), [hook], max_recoveries=0)
    report_in_thread(hook.coords[-1], aborted())
    assert session.should_stop()
    assert session.should_stop()
    with pytest.raises(AbortedError):
        session.close()
    session.close()


def test_a_lost_session_is_closed_without_end(caplog: pytest.LogCaptureFixture) -> None:  # A34
    class End(SessionRunHook):
        def end(self, session: Any) -> None:
            raise AssertionError("there is no session to end")

    sessions = Sessions(aborted())
    with MonitoredSession(sessions, [End()], max_recoveries=0) as session, pytest.raises(AbortedError):
        session.run("y")
    assert "end() is not called" in caplog.text


def test_a_factory_must_stay_on_one_graph() -> None:
    from tensortap.seam.graph import Graph

    def make() -> CounterSession:
        with Graph().as_default():
            return CounterSession(failures=[aborted()])

    with pytest.raises(RuntimeError, match="another graph"), MonitoredSession(make) as session:
        session.run("y")


def test_recovery_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), MonitoredSession(Sessions(aborted())) as session:
        session.run("y")
    assert "The session was preempted (AbortedError('preempted')); making a new one in 0.0 s." in caplog.text
