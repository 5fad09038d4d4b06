"""MonitoredSession and SingularMonitoredSession beyond the order of calls, which lifecycle/ compares."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tensortap.errors import AbortedError, GraphFinalizedError, SessionClosedError
from tensortap.hooks.args import SessionRunArgs
from tensortap.hooks.builtin.counter import StepCounterHook
from tensortap.hooks.builtin.stopping import StopAtStepHook
from tensortap.hooks.creators import SessionCreator
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.monitored import MonitoredSession, SingularMonitoredSession
from tensortap.seam.graph import Graph, GraphKeys, get_default_graph

from .counter_session import CounterSession


class Calls(SessionRunHook):
    """Counts calls and raises planted errors."""

    def __init__(self, **errors: BaseException) -> None:
        self.calls: list[str] = []
        self.errors = errors

    def _called(self, moment: str) -> None:
        self.calls.append(moment)
        if moment in self.errors:
            raise self.errors[moment]

    def begin(self) -> None:
        self._called("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.session, self.coord = session, coord
        self._called("after_create_session")

    def before_run(self, run_context: Any) -> SessionRunArgs | None:
        self._called("before_run")
        return None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._called("after_run")

    def end(self, session: Any) -> None:
        self._called("end")


START = ["begin", "after_create_session"]
RUN = ["before_run", "after_run"]


# --- what may be passed ----------------------------------------------------------------------------


def test_a_ready_session_is_enough() -> None:
    raw = CounterSession()
    with MonitoredSession(raw) as session:
        assert session.run("y") == 2
        assert session.graph is raw.graph
    assert raw.closed


def test_a_factory_makes_its_session_on_the_graph_that_hooks_begin_on() -> None:
    class Deriving(SessionRunHook):
        def begin(self) -> None:
            get_default_graph().add_derived("norm", abs, ["y:0"])

    with MonitoredSession(CounterSession, [Deriving()]) as session:
        assert session.graph is not None
        assert "norm" in session.graph


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "needs a session to monitor. Pass an engine session such as"),
        (3, "3 is neither a session creator nor a session"),
        (SessionCreator, "SessionCreator is a class; pass an instance"),
    ],
)
def test_anything_else_is_refused_with_advice(wrong: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        MonitoredSession(wrong)


def test_a_monitored_session_is_not_monitored_again() -> None:
    with (
        MonitoredSession(CounterSession()) as session,
        pytest.raises(TypeError, match="is a monitored session already"),
    ):
        MonitoredSession(session)


class NoHook:
    def begin(self) -> None: ...

    after_run = "not callable"


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ([Calls], r"Calls is a hook class; pass an instance: Calls\(...\)"),
        ([NoHook()], "NoHook has no method after_create_session, before_run, after_run, end"),
        ([Calls(), "hook"], "'hook' is no hook"),
        (Calls(), "must be a list of hooks, got Calls"),
    ],
)
def test_what_is_no_hook_is_refused_before_anything_happens(hooks: Any, message: str) -> None:
    made = []
    with pytest.raises(TypeError, match=message):
        MonitoredSession(lambda: made.append(1) or CounterSession(), hooks)
    assert made == []


def test_a_hook_need_not_derive_from_the_base_class_nor_be_hashable() -> None:  # A10
    class Duck:
        __hash__ = None  # type: ignore[assignment]

        def __getattr__(self, name: str) -> Any:
            return lambda *args: None

    with MonitoredSession(CounterSession(), [Duck()]) as session:
        assert session.run("y") == 2


# --- hooks for one run -----------------------------------------------------------------------------


def test_a_run_may_choose_its_hooks() -> None:  # NEEDS 13
    a, b = Calls(), Calls()
    with MonitoredSession(CounterSession(), [a, b]) as session:
        assert session.run("y", hooks=[]) == 2
        assert (a.calls, b.calls) == (START, START)
        session.run("y", hooks=[b])
        assert (a.calls, b.calls) == (START, START + RUN)
        session.run("y", hooks=(each for each in [b, a]))
        assert (a.calls, b.calls) == (START + RUN, START + RUN + RUN)
        session.run_step_fn(lambda step_context: step_context.run_with_hooks("y", hooks=[]))
        assert a.calls == START + RUN
        with pytest.raises(ValueError, match=r"hooks of this session; not one of them: <.*Calls"):
            session.run("y", hooks=[Calls()])


# --- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["begin", "after_create_session", "before_run", "after_run", "end"])
def test_an_error_of_a_hook_names_hook_and_moment(moment: str) -> None:
    planted = KeyError("planted")
    with (
        pytest.raises(KeyError) as caught,
        MonitoredSession(CounterSession(), [Calls(**{moment: planted})]) as s,
    ):
        s.run("y")
    assert caught.value is planted
    assert planted.__notes__ == [f"Raised in {moment}() of the hook Calls."]


@pytest.mark.parametrize("moment", ["after_run", "end"])
def test_all_hooks_are_called_and_the_first_error_wins(  # X20
    moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = Calls(**{moment: KeyError("1")}), Calls(**{moment: ValueError("2")}), Calls()
    with pytest.raises(KeyError), MonitoredSession(CounterSession(), [first, second, third]) as session:
        session.run("y")
    assert moment in third.calls
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        f"{moment}() of the hook Calls failed too: ValueError('2')"
    ]


def test_a_failed_construction_leaves_nothing_open() -> None:  # A11 A12
    raw = CounterSession()
    hook = Calls(after_create_session=ValueError("planted"))
    with pytest.raises(ValueError, match="planted"):
        MonitoredSession(raw, [hook])
    assert raw.closed
    assert hook.coord.should_stop()
    assert not raw.graph.finalized


def test_a_failed_begin_leaves_nothing_open_either() -> None:  # A11
    made: list[CounterSession] = []

    def make() -> CounterSession:
        made.append(CounterSession())
        return made[-1]

    with pytest.raises(ValueError, match="planted"):
        MonitoredSession(make, [Calls(begin=ValueError("planted"))])
    assert [each.closed for each in made] == [True]


def test_a_failed_end_still_closes_the_session() -> None:  # A26
    raw = CounterSession()
    with pytest.raises(AbortedError), MonitoredSession(raw, [Calls(end=AbortedError(None, "late"))]):
        pass
    assert raw.closed


def fail_everywhere(hook: Calls) -> Any:
    def step(step_context: Any) -> None:
        hook.coord.request_stop(KeyError("thread"))
        raise ValueError("body")

    return step


def test_body_error_is_the_context_of_the_threads_error() -> None:  # A25
    hook = Calls()
    with pytest.raises(KeyError) as caught, MonitoredSession(CounterSession(), [hook]) as session:
        session.run_step_fn(fail_everywhere(hook))
    assert isinstance(caught.value.__context__, ValueError)


@pytest.mark.parametrize("moment", ["begin", "after_create_session", "before_run", "after_run", "end"])
def test_ctrl_c_closes_everything(moment: str) -> None:
    raw = CounterSession()
    hook, other = Calls(), Calls(**{moment: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt), MonitoredSession(raw, [hook, other]) as session:
        session.run("y")
    if moment != "begin":
        assert raw.closed
        assert hook.coord.should_stop()
    assert not raw.graph.finalized
    assert ("end" in hook.calls) == (moment == "end")


def test_ctrl_c_in_the_engine() -> None:
    raw = CounterSession(failures=[KeyboardInterrupt()])
    hook = Calls()
    with pytest.raises(KeyboardInterrupt), MonitoredSession(raw, [hook]) as session:
        session.run("y")
    assert raw.closed
    assert hook.calls == [*START, "before_run"]


def test_run_refuses_once_a_stop_was_requested() -> None:  # A20
    class Stop(SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.request_stop()

    raw = CounterSession()
    with MonitoredSession(raw, [Stop()]) as session:
        assert session.run("y") == 2
        assert session.should_stop()
        with pytest.raises(RuntimeError, match=r"should_stop\(\) is true"):
            session.run("y")
    assert len(raw.calls) == 1


def test_hooks_are_told_of_an_error_that_ends_the_session(
    caplog: pytest.LogCaptureFixture,
) -> None:  # NEEDS 14
    class Told(Calls):
        def on_error(self, session: Any, error: BaseException) -> None:
            self.told = (session.closed, error)
            raise OSError("cannot even tell")

    raw, hooks, planted = CounterSession(), [Told(), Told(), NoErrors()], ValueError("planted")
    with pytest.raises(ValueError, match="planted"), MonitoredSession(raw, hooks):
        raise planted
    assert [hook.told for hook in hooks[:2]] == [(False, planted)] * 2
    assert caplog.text.count("on_error() of the hook") == 2
    with MonitoredSession(CounterSession(), [Told()]):
        raise StopIteration  # no error


class NoErrors:
    """A hook from before `on_error` existed."""

    def begin(self) -> None: ...
    def after_create_session(self, session: Any, coord: Any) -> None: ...
    def before_run(self, run_context: Any) -> None: ...
    def after_run(self, run_context: Any, run_values: Any) -> None: ...
    def end(self, session: Any) -> None: ...


# --- closing ---------------------------------------------------------------------------------------


def test_everything_says_that_it_is_closed() -> None:  # A43
    session = MonitoredSession(CounterSession())
    session.close()
    assert session.should_stop()
    assert session.graph is None
    with pytest.raises(SessionClosedError, match="monitored session is closed"):
        session.run("y")
    with pytest.raises(SessionClosedError):
        session.run_step_fn(lambda step_context: None)


def test_closing_twice_is_harmless() -> None:  # A44 X5
    hook = Calls()
    with MonitoredSession(CounterSession(), [hook]) as session:
        session.close()
        session.close()
    assert hook.calls == [*START, "end"]


def test_a_failed_end_is_not_repeated_by_the_next_close() -> None:  # A44 X5
    hook = Calls(end=ValueError("planted"))
    session = MonitoredSession(CounterSession(), [hook])
    with pytest.raises(ValueError, match="planted"):
        session.close()
    session.close()
    assert hook.calls.count("end") == 1


@pytest.mark.parametrize("before", [False, True])
def test_the_graph_is_left_as_it_was(before: bool) -> None:  # A42
    raw = CounterSession()
    if before:
        raw.graph.finalize()
    with MonitoredSession(raw) as session:
        assert raw.graph.finalized
        with pytest.raises(GraphFinalizedError):
            raw.graph.add_derived("late", abs, ["y:0"])
        session.run("y")
    assert raw.graph.finalized == before


def test_begin_twice_on_one_graph_changes_nothing() -> None:  # A8
    class Deriving(SessionRunHook):
        def begin(self) -> None:
            get_default_graph().add_derived("norm", abs, ["y:0"])

    raw = CounterSession()
    for _ in range(2):
        with MonitoredSession(raw, [Deriving()]) as session:
            session.run("y")
    assert [node.name for node in raw.graph.nodes] == ["global_step", "norm"]


def test_threads_get_the_grace_period_and_no_more(caplog: pytest.LogCaptureFixture) -> None:  # A41
    release = threading.Event()
    stuck = threading.Thread(target=release.wait, name="stuck", daemon=True)
    stuck.start()
    hook = Calls()
    raw = CounterSession()
    with caplog.at_level(logging.INFO), MonitoredSession(raw, [hook], stop_grace_period_secs=0.01):
        hook.coord.register_thread(stuck)
    assert raw.closed
    assert "still running after the grace period: stuck" in caplog.text
    release.set()
    stuck.join()


def test_threads_are_joined_before_the_session_closes() -> None:  # A41
    hook = Calls()
    raw = CounterSession()
    seen = []

    def work() -> None:
        hook.coord.wait_for_stop()
        seen.append(raw.closed)

    with MonitoredSession(raw, [hook]):
        thread = threading.Thread(target=work)
        thread.start()
        hook.coord.register_thread(thread)
    assert seen == [False]


def test_queue_runners_of_the_graph_are_started() -> None:  # A7
    class Runner:
        def create_threads(self, session: Any, coord: Any, daemon: bool, start: bool) -> None:
            self.got = (session, coord, daemon, start)

    raw, runner, hook = CounterSession(), Runner(), Calls()
    raw.graph.add_to_collection(GraphKeys.QUEUE_RUNNERS, runner)
    with MonitoredSession(raw, [hook]):
        assert runner.got == (raw, hook.coord, True, True)


def test_it_is_no_default_session() -> None:  # A45
    with MonitoredSession(CounterSession()) as session:
        assert not hasattr(session, "as_default")


# --- the singular one ------------------------------------------------------------------------------


def test_singular_never_recovers() -> None:  # A36
    raw = CounterSession(failures=[AbortedError(None, "gone")])
    with SingularMonitoredSession(session=raw) as session:
        with pytest.raises(AbortedError):
            session.run("y")
        assert session.raw_session() is raw
        assert session.run("y") == 2
    assert session.raw_session() is None


def test_singular_preemption_while_constructed() -> None:  # A36
    def make() -> Any:
        raise AbortedError(None, "gone")

    with pytest.raises(AbortedError):
        SingularMonitoredSession(session=make)


def test_a_creator_may_know_nothing_of_graphs() -> None:  # A54
    class Creator(SessionCreator):
        def create_session(self) -> Any:
            return CounterSession()

    with Graph().as_default() as mine, MonitoredSession(Creator()) as session:
        assert session.graph is mine
    with MonitoredSession(Creator()) as session:
        assert session.graph is not mine
        assert session.graph is not None
        assert session.graph.finalized


def test_what_hooks_add_is_carried_over_to_a_session_with_a_graph_of_its_own() -> None:
    raw = CounterSession()

    class Creator(SessionCreator):
        def create_session(self) -> Any:
            raw.reopen()
            return raw

    class AddsOne(SessionRunHook):
        def begin(self) -> None:
            self.more = get_default_graph().add_derived("more", lambda y: y + 1, ["y"])

        def before_run(self, run_context: Any) -> SessionRunArgs:
            return SessionRunArgs(self.more)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            assert run_values.results == 3

    for step in (1, 2):  # twice: the session's graph is open again afterwards
        hooks = [AddsOne(), StopAtStepHook(last_step=step), StepCounterHook()]
        with MonitoredSession(Creator(), hooks) as session:
            assert session.graph is raw.graph
            while not session.should_stop():
                session.run("y")
        assert raw.global_step == step
        assert not raw.graph.finalized


def test_a_factory_uses_the_graph_that_is_the_default() -> None:  # A54
    with Graph().as_default() as mine:
        mine.add_derived("more", lambda y: y + 1, ["y:0"])
        with MonitoredSession(CounterSession) as session:
            assert session.graph is mine
            assert session.run("more:0") == 3


def test_creators_are_abstract() -> None:  # A54
    with pytest.raises(TypeError, match="abstract"):
        SessionCreator()  # type: ignore[abstract]
