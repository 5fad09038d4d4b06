"""Logging, stopping, NaN, waiting, final ops and feed hooks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensortap.errors import AbortedError, NanLossDuringTrainingError, OutOfRangeError, UnknownTensorError
from tensortap.hooks.args import SessionRunArgs
from tensortap.hooks.builtin.feed_fn import FeedFnHook
from tensortap.hooks.builtin.final_ops import FinalOpsHook
from tensortap.hooks.builtin.logging import LoggingTensorHook
from tensortap.hooks.builtin.nan import NanTensorHook
from tensortap.hooks.builtin.stopping import MultiStepStopAtStepHook, StopAtStepHook
from tensortap.hooks.builtin.waiter import GlobalStepWaiterHook
from tensortap.hooks.hook import SessionRunHook
from tensortap.hooks.monitored import MonitoredSession
from tensortap.records import Node, TensorSpec
from tensortap.seam.graph import Graph

from ..conftest import FakeClock
from ..counter_session import CounterSession

MakeSession = Callable[[Callable[..., Any]], Any]


def step(x: float = 1.0) -> dict[str, Any]:
    return {"loss": 2.0 * x, "weights": [x, 1e-7 * x]}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines logged since the last call."""
    caplog.set_level(logging.INFO, "tensortap.hooks")

    def lines() -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.name == "tensortap.hooks"]
        caplog.clear()
        return found

    return lines


Log = Callable[[], list[str]]

# --- LoggingTensorHook ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("periods", "message"),
    [
        ({}, "exactly one of every_n_iter and every_n_secs"),
        ({"every_n_iter": 5, "every_n_secs": 5.0}, "exactly one"),
        ({"every_n_iter": 5, "every_n_secs": 5.0, "at_end": True}, "exactly one"),
        ({"every_n_iter": 0}, "must be positive, got 0"),
        ({"every_n_iter": -10}, "must be positive"),
    ],
)
def test_logging_needs_one_period(periods: dict[str, Any], message: str) -> None:  # B15
    with pytest.raises(ValueError, match=message):
        LoggingTensorHook(["loss"], **periods)


def test_logging_every_few_runs(make_session: MakeSession, log: Log, clock: FakeClock) -> None:  # B15
    with MonitoredSession(make_session(step), [LoggingTensorHook(["loss"], every_n_iter=3)]) as session:
        for run in range(7):
            session.run(feed_dict={"x": float(run)})
            clock.now += 0.5
    assert log() == ["loss = 0.0", "loss = 6.0 (1.500 sec)", "loss = 12.0 (1.500 sec)"]


def test_logging_every_few_seconds(log: Log, clock: FakeClock) -> None:  # B15
    with MonitoredSession(CounterSession(step), [LoggingTensorHook(["loss"], every_n_secs=1.0)]) as session:
        for _ in range(5):
            session.run()
            clock.now += 0.4
    assert log() == ["loss = 2.0", "loss = 2.0 (1.200 sec)"]


def test_logging_at_the_end_costs_no_further_step(make_session: MakeSession, log: Log) -> None:  # B15
    raw = make_session(step)
    with MonitoredSession(raw, [LoggingTensorHook(["loss"], at_end=True)]) as session:
        session.run(feed_dict={"x": 1.0})
        session.run(feed_dict={"x": 4.0})
        assert log() == []
    assert log() == ["loss = 8.0"]
    assert raw.global_step == 2


def test_logging_at_the_end_of_nothing(log: Log) -> None:  # B15
    with MonitoredSession(CounterSession(step), [LoggingTensorHook(["loss"], at_end=True)]):
        pass
    assert log() == []


def test_tags_of_a_dict_are_sorted_and_lists_keep_their_order(log: Log) -> None:  # B15
    raw = CounterSession(lambda: {"a": 1, "b": 2})
    hooks = [
        LoggingTensorHook({"z": "a", "y": "b"}, every_n_iter=1),
        LoggingTensorHook(["b", "a"], every_n_iter=1),
        LoggingTensorHook("a", every_n_iter=1),
    ]
    with MonitoredSession(raw, hooks) as session:
        session.run()
    assert log() == ["y = 2, z = 1", "b = 2, a = 1", "a = 1"]


def test_formatter_replaces_the_text(log: Log, clock: FakeClock) -> None:  # B15
    hook = LoggingTensorHook({"l": "loss"}, every_n_iter=1, formatter=lambda v: f"<{v['l']}>")
    with MonitoredSession(CounterSession(step), [hook]) as session:
        session.run()
        session.run()
    assert log() == ["<2.0>", "<2.0>"]


def test_small_numbers_are_printed_without_exponent(log: Log) -> None:  # B15
    raw = CounterSession(lambda: {"w": np.array([1.0, 1e-7])})
    before = np.get_printoptions()
    with MonitoredSession(raw, [LoggingTensorHook(["w"], every_n_iter=1)]) as session:
        session.run()
    assert log() == ["w = [1.        0.0000001]"]
    assert np.get_printoptions() == before


def test_logging_starts_over_with_a_new_session(log: Log, clock: FakeClock) -> None:  # B15
    hook = LoggingTensorHook(["loss"], every_n_iter=100)
    for _ in range(2):
        with MonitoredSession(CounterSession(step), [hook]) as session:
            session.run()
            session.run()
        assert log() == ["loss = 2.0"]


def test_names_are_resolved_in_the_graph(log: Log) -> None:  # B16
    raw = CounterSession(lambda: {"fc": 5})
    raw.graph.record([Node("fc", "aten::addmm", outputs=(TensorSpec("float32", ()),))])
    node = raw.graph.node("fc")
    hooks = [
        LoggingTensorHook([name], every_n_iter=1) for name in ("fc", "fc:0", node, raw.graph.tensor("fc"))
    ]
    with MonitoredSession(raw, hooks) as session:
        session.run()
    assert log() == ["fc = 5", "fc:0 = 5", "fc = 5", "fc:0 = 5"]


def test_ambiguous_and_foreign_tensors_are_refused() -> None:  # B16
    raw = CounterSession(step)
    raw.graph.record([Node("split", "aten::split", outputs=(TensorSpec("float32", ()),) * 2)])
    with pytest.raises(UnknownTensorError, match="has 2 outputs; say which one"):
        MonitoredSession(raw, [LoggingTensorHook(["split"], every_n_iter=1)])
    with pytest.raises(ValueError, match="belongs to another graph"):
        MonitoredSession(raw, [LoggingTensorHook([Graph().tensor("x")], every_n_iter=1)])


# --- StopAtStepHook -------------------------------------------------------------------------------


@pytest.mark.parametrize("both", [{}, {"num_steps": 1, "last_step": 2}])
def test_stop_needs_one_number(both: dict[str, int]) -> None:  # B17
    with pytest.raises(ValueError, match="exactly one of num_steps and last_step"):
        StopAtStepHook(**both)


@pytest.mark.parametrize(("limit", "runs"), [({"last_step": 5}, 3), ({"num_steps": 5}, 5)])
def test_stop_at_a_step(make_session: MakeSession, limit: dict[str, int], runs: int) -> None:  # B17
    raw = make_session(step)
    raw.global_step = 2
    done = 0
    with MonitoredSession(raw, [StopAtStepHook(**limit)]) as session:
        while not session.should_stop():
            session.run()
            done += 1
    assert done == runs


def test_stop_beyond_the_last_step_takes_one_run() -> None:  # B17
    raw = CounterSession(step)
    raw.global_step = 9
    with MonitoredSession(raw, [StopAtStepHook(last_step=5)]) as session:
        assert not session.should_stop()
        session.run()
        assert session.should_stop()


def test_num_steps_is_not_counted_anew_after_recovery() -> None:  # B17
    raw = CounterSession(step, failures=[None, None, AbortedError(None, "gone")])
    with MonitoredSession(raw, [StopAtStepHook(num_steps=4)]) as session:
        while not session.should_stop():
            session.run()
    assert raw.global_step == 4


def test_only_the_real_step_decides() -> None:  # B17
    class Elsewhere(CounterSession):
        """Another worker sets the step back after the fetch."""

        def run(self, fetches: Any = None, *args: Any, **kwargs: Any) -> Any:
            results = super().run(fetches, *args, **kwargs)
            if fetches != "global_step:0":
                self.global_step = 1
            return results

    raw = Elsewhere(step)
    raw.global_step = 7
    with MonitoredSession(raw, [StopAtStepHook(last_step=5)]) as session:
        session.run()
        assert not session.should_stop()


def test_runs_of_several_steps_stop_exactly() -> None:  # B26
    raw, amounts = CounterSession(step, fetches_old_step=True), []

    def many_steps() -> None:
        raw.global_step += amounts[-1] - 1

    raw.failures = iter([many_steps] * 9)
    hook = MultiStepStopAtStepHook(num_steps=10, steps_per_run=4, set_steps_per_run=amounts.append)
    with MonitoredSession(raw, [hook]) as session:
        while not session.should_stop():
            session.run()
    assert amounts == [4, 4, 2]
    assert raw.global_step == 10
    with pytest.raises(ValueError, match="must be positive, got 0"):
        MultiStepStopAtStepHook(last_step=1, steps_per_run=0, set_steps_per_run=print)


@pytest.mark.parametrize("hook", [StopAtStepHook(last_step=1), GlobalStepWaiterHook(1)])
def test_hooks_that_need_a_global_step_say_so(hook: Any) -> None:  # B7
    raw = CounterSession(step)
    raw.graph.global_step = None
    with pytest.raises(RuntimeError, match=f"{type(hook).__name__} needs a global step"):
        MonitoredSession(raw, [hook])


# --- NanTensorHook --------------------------------------------------------------------------------

BAD = [
    (float("nan"), "loss is NaN."),
    (float("inf"), "loss is infinite."),
    (np.array([1, np.nan, -np.inf, np.nan], np.float16), "loss has 2 NaN and 1 infinite elements of 4."),
    (np.array([[np.nan]], ml_dtypes.bfloat16), "loss has 1 NaN and 0 infinite elements of 1."),
    (np.array([np.nan], ml_dtypes.float8_e4m3fn), "loss has 1 NaN and 0 infinite elements of 1."),
    (np.complex64(complex(0, np.inf)), "loss is infinite."),
]


@pytest.mark.parametrize(("value", "message"), BAD)
def test_bad_losses_raise(value: Any, message: str) -> None:  # B21 X19
    raw = CounterSession(lambda: {"loss": value})
    with (
        pytest.raises(NanLossDuringTrainingError) as caught,
        MonitoredSession(raw, [NanTensorHook("loss")]) as s,
    ):
        s.run()
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [1.0, 3, True, np.zeros(0), np.ones(3, ml_dtypes.bfloat16)])
def test_good_losses_pass(value: Any) -> None:  # B21
    with MonitoredSession(CounterSession(lambda: {"loss": value}), [NanTensorHook("loss")]) as session:
        session.run()
        assert not session.should_stop()


def test_bad_loss_may_just_stop(make_session: MakeSession, log: Log) -> None:  # B21
    raw = make_session(lambda x=1.0: {"loss": float("nan") if x > 1 else x})
    with MonitoredSession(raw, [NanTensorHook("loss", fail_on_nan_loss=False)]) as session:
        session.run(feed_dict={"x": 1.0})
        assert not session.should_stop()
        session.run(feed_dict={"x": 2.0})
        assert session.should_stop()
    assert log() == ["loss is NaN. Stopping."]


# --- GlobalStepWaiterHook -------------------------------------------------------------------------


def test_waiting_for_a_step(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:  # B23
    raw = CounterSession(step)
    slept = []

    def others_work(seconds: float) -> None:
        slept.append(seconds)
        raw.global_step += 700

    monkeypatch.setattr("tensortap.hooks.builtin.waiter.sleep", others_work)
    with MonitoredSession(raw, [GlobalStepWaiterHook(2500)]) as session:
        session.run()
        session.run()
    assert slept == [0.5] * 4
    assert log() == [
        "Waiting for global step 2500; it is 0 now.",
        "Waiting for global step 2500; it is 1400 now.",
    ]


@pytest.mark.parametrize("until", [0, -3])
def test_not_waiting(until: int, clock: FakeClock) -> None:  # B23
    with MonitoredSession(CounterSession(step), [GlobalStepWaiterHook(until)]) as session:
        session.run()
    assert clock.slept == []


# --- FinalOpsHook ---------------------------------------------------------------------------------


def test_final_ops_keep_their_structure(make_session: MakeSession) -> None:  # B24
    hook = FinalOpsHook({"a": ["loss"], "step": "global_step:0"}, {"x": 5.0})
    with MonitoredSession(make_session(step), [hook]) as session:
        session.run()
        assert hook.final_ops_values is None
    assert hook.final_ops_values["a"] == [10.0]


def test_final_ops_on_state_execute_nothing(make_session: MakeSession) -> None:  # B24
    raw, hook = make_session(step), FinalOpsHook("global_step:0")
    with MonitoredSession(raw, [hook]) as session:
        session.run()
    assert hook.final_ops_values == raw.global_step == 1


def test_final_ops_may_be_a_function_or_nothing() -> None:  # B24
    hooks = [FinalOpsHook(lambda session: session.global_step), FinalOpsHook(None)]
    with MonitoredSession(CounterSession(step), hooks) as session:
        session.run()
    assert [hook.final_ops_values for hook in hooks] == [1, None]


@pytest.mark.parametrize("error", [OutOfRangeError(None, "end"), StopIteration()])
def test_final_ops_beyond_the_input(error: Exception, log: Log) -> None:  # B24
    raw = CounterSession(step, failures=[error])
    with pytest.raises(type(error)), MonitoredSession(raw, [FinalOpsHook("loss")]):
        pass
    assert "must not depend on input" in log()[0]


# --- FeedFnHook -----------------------------------------------------------------------------------


def test_feeds_are_made_for_every_run(make_session: MakeSession) -> None:  # B25
    values = iter([1.0, 5.0])
    with MonitoredSession(make_session(step), [FeedFnHook(lambda: {"x": next(values)})]) as session:
        assert [session.run("loss"), session.run("loss")] == [2.0, 10.0]


# --- all together ---------------------------------------------------------------------------------


def test_hooks_of_the_user_run_beside_them(make_session: MakeSession, log: Log) -> None:
    class Mine(SessionRunHook):
        def before_run(self, run_context: Any) -> SessionRunArgs:
            return SessionRunArgs({"w": "weights"})

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.got = run_values.results["w"]

    mine = Mine()
    hooks = [
        NanTensorHook("loss"),
        mine,
        StopAtStepHook(last_step=2),
        LoggingTensorHook(["loss"], every_n_iter=2),
    ]
    with MonitoredSession(make_session(step), hooks) as session:
        while not session.should_stop():
            session.run("loss")
    assert mine.got[0] == 1.0
    assert log() == ["loss = 2.0"]
