"""Checkpoint, step counter and summary hooks: what they leave on disk."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import text_format
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.summary_pb2 import Summary

from tensortap.errors import AbortedError, CheckpointError
from tensortap.hooks.builtin.checkpoint import CheckpointSaverHook, CheckpointSaverListener
from tensortap.hooks.builtin.counter import StepCounterHook
from tensortap.hooks.builtin.summary_saver import SummarySaverHook
from tensortap.hooks.creators import ChiefSessionCreator
from tensortap.hooks.monitored import MonitoredSession
from tensortap.hooks.saver import Saver, latest_checkpoint
from tensortap.hooks.scaffold import Scaffold
from tensortap.hooks.summary import FileWriterCache, get_event_writer
from tensortap.records import Node, TensorSpec
from tensortap.seam.graph import GraphKeys

from ..conftest import FakeClock
from ..counter_session import CounterSession
from ..events import read_events, scalars

MakeSession = Callable[[Callable[..., Any]], Any]


def step(x: float = 1.0) -> dict[str, Any]:
    return {"loss": 2.0 * x, "weights": [x, x]}


class Recording(Saver):
    """Also notes the steps it saved."""

    def __init__(self) -> None:
        super().__init__(max_to_keep=None)
        self.steps: list[int] = []

    def save(self, session: Any, path_prefix: Any, global_step: int | None = None) -> Path:
        assert global_step is not None
        self.steps.append(global_step)
        return super().save(session, path_prefix, global_step)


# --- CheckpointSaverHook --------------------------------------------------------------------------


def test_saver_and_scaffold_exclude_each_other(tmp_path: Path) -> None:  # B18
    with pytest.raises(ValueError, match="saver or scaffold, not both"):
        CheckpointSaverHook(tmp_path, save_steps=1, saver=Saver(), scaffold=Scaffold())


@pytest.mark.parametrize("periods", [{}, {"save_secs": 1.0, "save_steps": 1}])
def test_checkpoints_need_one_period(tmp_path: Path, periods: dict[str, Any]) -> None:  # B1 B18
    with pytest.raises(ValueError, match="exactly one"):
        CheckpointSaverHook(tmp_path, **periods)


def test_saving_by_steps(make_session: MakeSession, tmp_path: Path) -> None:  # B18
    saver = Recording()
    with MonitoredSession(
        make_session(step), [CheckpointSaverHook(tmp_path, save_steps=2, saver=saver)]
    ) as session:
        assert saver.steps == [0]  # already when the session is created
        for _ in range(5):
            session.run()
    assert saver.steps == [0, 2, 4, 5]  # the last step at the end
    assert latest_checkpoint(tmp_path) == tmp_path / "model.ckpt-5"


def test_the_last_step_is_not_saved_twice(make_session: MakeSession, tmp_path: Path) -> None:  # B18
    saver = Recording()
    with MonitoredSession(
        make_session(step), [CheckpointSaverHook(tmp_path, save_steps=2, saver=saver)]
    ) as session:
        session.run()
        session.run()
    assert saver.steps == [0, 2]


def test_saving_by_seconds(tmp_path: Path, clock: FakeClock) -> None:  # B18
    saver = Recording()
    with MonitoredSession(
        CounterSession(step), [CheckpointSaverHook(tmp_path, save_secs=2.0, saver=saver)]
    ) as session:
        for _ in range(5):
            session.run()
            clock.now += 1.0
        assert saver.steps == [0, 3, 5]


def test_steps_per_run(tmp_path: Path) -> None:  # B26
    raw, saver = CounterSession(step, fetches_old_step=True), Recording()

    def four_more() -> None:
        raw.global_step += 4

    raw.failures = iter([four_more] * 4)
    hook = CheckpointSaverHook(tmp_path, save_steps=10, saver=saver, steps_per_run=5)
    with MonitoredSession(raw, [hook]) as session:
        for _ in range(4):
            session.run()
    assert saver.steps == [0, 10, 20]


def test_where_the_saver_comes_from(tmp_path: Path) -> None:  # B18
    scaffold, saver = Scaffold(saver=Recording()), Recording()
    creator = ChiefSessionCreator(scaffold, session=CounterSession(step))
    with MonitoredSession(creator, [CheckpointSaverHook(tmp_path, save_steps=9, scaffold=scaffold)]):
        assert scaffold.saver.steps == [0]
    raw = CounterSession(step)
    raw.graph.add_to_collection(GraphKeys.SAVERS, saver)
    with MonitoredSession(raw, [CheckpointSaverHook(tmp_path, save_steps=9)]):
        assert saver.steps == [0]


def test_two_savers_in_the_collection(tmp_path: Path) -> None:  # B18
    raw = CounterSession(step)
    for _ in range(2):
        raw.graph.add_to_collection(GraphKeys.SAVERS, Saver())
    creator = ChiefSessionCreator(Scaffold(saver=Saver()), session=raw)
    with pytest.raises(RuntimeError, match="There are 2 savers in the graph's collection"):
        MonitoredSession(creator, [CheckpointSaverHook(tmp_path, save_steps=9)])


def test_graph_and_events_are_written(make_session: MakeSession, tmp_path: Path) -> None:  # B18
    hook = CheckpointSaverHook(tmp_path, save_steps=1, saver=Saver(), checkpoint_basename="weights")
    raw = make_session(step)
    with MonitoredSession(raw, [hook]) as session:
        session.run()
    FileWriterCache.clear()
    graph = text_format.Parse((tmp_path / "graph.pbtxt").read_text(), GraphDef())
    assert "global_step" in {node.name for node in graph.node}
    events = read_events(tmp_path)
    assert events[0].file_version
    assert sum(bool(event.graph_def) for event in events) >= 1
    assert sum(bool(event.meta_graph_def) for event in events) >= 1
    saved = [(e.step, e.session_log.checkpoint_path) for e in events if e.HasField("session_log")]
    assert saved == [(step, str(tmp_path / f"weights-{step}")) for step in (0, 1)]


def test_no_graph_file_if_not_wanted(tmp_path: Path) -> None:  # B18
    hook = CheckpointSaverHook(tmp_path, save_steps=1, saver=Saver(), save_graph_def=False)
    with MonitoredSession(CounterSession(step), [hook]) as session:
        session.run()
    assert not (tmp_path / "graph.pbtxt").exists()


def test_a_graph_that_grows_is_written_again(tmp_path: Path) -> None:
    raw = CounterSession(step)
    hook = CheckpointSaverHook(tmp_path, save_steps=1, saver=Saver())
    with MonitoredSession(raw, [hook]) as session:
        assert "late" not in (tmp_path / "graph.pbtxt").read_text()
        raw.graph.record([Node("late", "aten::add", outputs=(TensorSpec("float32", ()),))])
        session.run()
        assert "late" in (tmp_path / "graph.pbtxt").read_text()


def test_a_restored_step_is_saved_again(tmp_path: Path) -> None:  # B18
    saver = Recording()
    raw = CounterSession(step, failures=[None, AbortedError(None, "gone")])
    creator = ChiefSessionCreator(Scaffold(saver=saver), checkpoint_dir=tmp_path, session=raw)
    with MonitoredSession(creator, [CheckpointSaverHook(tmp_path, save_steps=1, saver=saver)]) as session:
        session.run()
        session.run()
    assert saver.steps == [0, 1, 1, 2]


def test_a_failed_checkpoint_stops_the_training(tmp_path: Path) -> None:
    class Unsaveable(CounterSession):
        def save_state(self, path: Path) -> None:
            if self.global_step:
                raise OSError(28, "No space left on device")
            super().save_state(path)

    hook = CheckpointSaverHook(tmp_path, save_steps=1, saver=Saver())
    with (
        pytest.raises(CheckpointError, match="No space left"),
        MonitoredSession(Unsaveable(), [hook]) as session,
    ):
        session.run()
    assert latest_checkpoint(tmp_path) == tmp_path / "model.ckpt-0"


def test_failed_events_do_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hook = CheckpointSaverHook(tmp_path, save_steps=1, saver=Saver())
    with MonitoredSession(CounterSession(step), [hook]) as session:

        def full(data: bytes) -> None:
            raise OSError(28, "No space left on device")

        get_event_writer(tmp_path)._records.write = full
        session.run()
        session.run()
    assert latest_checkpoint(tmp_path) == tmp_path / "model.ckpt-2"
    assert get_event_writer(tmp_path).dropped == 2
    assert caplog.text.count("No space left") == 1


class Listener(CheckpointSaverListener):
    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[Any] = []
        self.stop_at = stop_at

    def begin(self) -> None:
        self.calls.append("begin")

    def before_save(self, session: Any, global_step_value: int) -> None:
        self.calls.append(("before", global_step_value))

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        self.calls.append(("after", global_step_value))
        return global_step_value == self.stop_at or None

    def end(self, session: Any, global_step_value: int) -> None:
        self.calls.append(("end", global_step_value))


def test_listeners(make_session: MakeSession, tmp_path: Path) -> None:  # B19
    first, second = Listener(stop_at=2), Listener()
    hook = CheckpointSaverHook(tmp_path, save_steps=2, saver=Saver(), listeners=[first, second])
    with MonitoredSession(make_session(step), [hook]) as session:
        while not session.should_stop():
            session.run()
    saved = ["begin", ("before", 0), ("after", 0), ("before", 2), ("after", 2), ("end", 2)]
    assert (first.calls, second.calls) == (saved, saved)


@pytest.mark.parametrize("at", [0, 3])
def test_first_and_last_save_do_not_stop(tmp_path: Path, at: int) -> None:  # B19
    listener = Listener(stop_at=at)
    hook = CheckpointSaverHook(tmp_path, save_steps=2, saver=Saver(), listeners=[listener])
    with MonitoredSession(CounterSession(step), [hook]) as session:
        for _ in range(3):
            session.run()
            assert not session.should_stop()
    assert listener.calls[-1] == ("end", 3)


# --- StepCounterHook ------------------------------------------------------------------------------


def test_counting_by_steps(make_session: MakeSession, tmp_path: Path, clock: FakeClock) -> None:  # B20
    with MonitoredSession(
        make_session(step), [StepCounterHook(every_n_steps=10, output_dir=tmp_path)]
    ) as session:
        for _ in range(30):
            clock.now += 0.01
            session.run()
    found = scalars(tmp_path)
    assert [(at, tag) for at, tag, _ in found] == [(11, "global_step/sec"), (21, "global_step/sec")]
    assert [value for *_, value in found] == pytest.approx([100.0, 100.0], rel=1e-3)


def test_counting_by_seconds(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:  # B20
    caplog.set_level(logging.INFO, "tensortap.hooks")
    hook = StepCounterHook(every_n_steps=None, every_n_secs=0.1, output_dir=tmp_path)
    with MonitoredSession(CounterSession(step), [hook]) as session:
        session.run()
        clock.now += 0.2
        session.run()
        clock.now += 0.2
        session.run()
    assert scalars(tmp_path) == [(2, "global_step/sec", 5.0), (3, "global_step/sec", 5.0)]
    assert "global_step/sec: 5" in caplog.text


def test_counting_without_a_place_to_write(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:  # B20
    caplog.set_level(logging.INFO, "tensortap.hooks")
    with MonitoredSession(CounterSession(step), [StepCounterHook(every_n_steps=1)]) as session:
        session.run()
        session.run()  # at the same instant
    assert "global_step/sec: inf" in caplog.text


def test_steps_per_run_of_the_counter(tmp_path: Path, clock: FakeClock) -> None:  # B26
    raw = CounterSession(step, fetches_old_step=True)

    def four_more() -> None:
        raw.global_step += 4

    raw.failures = iter([four_more] * 4)
    hook = StepCounterHook(every_n_steps=10, output_dir=tmp_path, steps_per_run=5)
    with MonitoredSession(raw, [hook]) as session:
        for _ in range(4):
            clock.now += 1.0
            session.run()
    assert scalars(tmp_path) == [(15, "global_step/sec", 5.0)]


def test_counting_after_the_step_was_set_back(tmp_path: Path, clock: FakeClock) -> None:  # B20
    raw = CounterSession(step)
    hook = StepCounterHook(every_n_steps=2, output_dir=tmp_path)
    for start in (0, 0):
        raw.global_step = start
        with MonitoredSession(raw, [hook]) as session:
            for _ in range(3):
                clock.now += 1.0
                session.run()
    assert [at for at, *_ in scalars(tmp_path)] == [3, 3]


def test_a_step_that_stands_still_is_reported_a_few_times(caplog: pytest.LogCaptureFixture) -> None:  # B20
    raw = CounterSession(step)

    def stand_still() -> None:
        raw.global_step -= 1

    raw.failures = iter([stand_still] * 20)
    with MonitoredSession(raw, [StepCounterHook(every_n_steps=1)]) as session:
        for _ in range(20):
            session.run()
    assert caplog.text.count("did not advance") == 5


@pytest.mark.parametrize("periods", [{"every_n_secs": 1.0}, {"every_n_steps": None}])
def test_the_counter_needs_one_period(periods: dict[str, Any]) -> None:  # B20
    with pytest.raises(ValueError, match="exactly one"):
        StepCounterHook(**periods)


# --- SummarySaverHook -----------------------------------------------------------------------------


@pytest.mark.parametrize("sources", [{}, {"scaffold": Scaffold(), "summary_op": "loss"}])
def test_summaries_need_one_source(sources: dict[str, Any]) -> None:  # B22
    with pytest.raises(ValueError, match="exactly one of scaffold and summary_op"):
        SummarySaverHook(save_steps=1, **sources)


def test_summaries_by_steps(make_session: MakeSession, tmp_path: Path) -> None:  # B22
    hook = SummarySaverHook(save_steps=8, output_dir=tmp_path, summary_op="loss")
    with MonitoredSession(make_session(step), [hook]) as session:
        for _ in range(30):
            session.run()
    assert scalars(tmp_path) == [(at, "loss", 2.0) for at in (1, 9, 17, 25)]
    starts = [e for e in read_events(tmp_path) if e.session_log.status == SessionLog.START]
    assert [event.step for event in starts] == [1]


def test_summaries_by_seconds(tmp_path: Path, clock: FakeClock) -> None:  # B22
    hook = SummarySaverHook(save_secs=2.0, output_dir=tmp_path, summary_op="loss")
    with MonitoredSession(CounterSession(step), [hook]) as session:
        for _ in range(6):
            session.run()
            clock.now += 0.9
    assert [at for at, *_ in scalars(tmp_path)] == [1, 4]


def test_several_summaries(make_session: MakeSession, tmp_path: Path) -> None:  # B22
    hooks = [
        SummarySaverHook(save_steps=1, output_dir=tmp_path, summary_op=["loss", "weights"]),
        SummarySaverHook(save_steps=1, output_dir=tmp_path, summary_op={"train/loss": "loss"}),
    ]
    with MonitoredSession(make_session(step), hooks) as session:
        session.run()
    assert scalars(tmp_path) == [(1, "loss", 2.0), (1, "train/loss", 2.0)]
    histograms = [v for e in read_events(tmp_path) for v in e.summary.value if v.HasField("histo")]
    assert [(each.tag, each.histo.num) for each in histograms] == [("weights", 2.0)]


def test_summaries_of_a_scaffold(tmp_path: Path) -> None:  # B22
    raw = CounterSession(step)
    raw.graph.add_to_collection(GraphKeys.SUMMARY_OP, "loss")
    scaffold = Scaffold()
    creator = ChiefSessionCreator(scaffold, session=raw)
    hook = SummarySaverHook(save_steps=1, output_dir=tmp_path, scaffold=scaffold)
    with MonitoredSession(creator, [hook]) as session:
        session.run()
    assert scalars(tmp_path) == [(1, "loss", 2.0)]


def test_a_scaffold_without_summaries(tmp_path: Path) -> None:  # B22
    hook = SummarySaverHook(save_steps=1, output_dir=tmp_path, scaffold=Scaffold())
    with MonitoredSession(CounterSession(step), [hook]) as session:
        session.run()
    assert scalars(tmp_path) == []


def test_without_a_writer_nothing_is_fetched() -> None:  # B22
    raw = CounterSession(step)
    with MonitoredSession(raw, [SummarySaverHook(save_steps=1, summary_op="loss")]) as session:
        session.run("weights")
    assert raw.calls == [("weights", None)]


def test_a_given_writer_is_used(tmp_path: Path) -> None:  # B22
    writer = get_event_writer(tmp_path)
    hook = SummarySaverHook(save_steps=1, summary_writer=writer, summary_op="loss")
    with MonitoredSession(CounterSession(step), [hook]) as session:
        session.run()
    assert scalars(tmp_path) == [(1, "loss", 2.0)]


class Scalars:
    """The least a writer can be."""

    def __init__(self) -> None:
        self.written: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.written.append((tag, value, step))


def test_every_writer_does_for_every_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # B20 B22
    # Or TensorBoard would import TensorFlow, which takes long and does not go well with PyTorch.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    from torch.utils.tensorboard import SummaryWriter

    theirs, least = SummaryWriter(str(tmp_path)), Scalars()
    summary = Summary(value=[Summary.Value(tag="message", simple_value=4.0)])

    def step() -> dict[str, Any]:
        return {"loss": 2.0, "array": [1.0, 2.0], "ready": summary}

    for writer in (theirs, least):
        hooks = [
            SummarySaverHook(save_steps=1, summary_writer=writer, summary_op=["loss", "array", "ready"]),
            StepCounterHook(every_n_steps=1, summary_writer=writer),
        ]
        with MonitoredSession(CounterSession(step), hooks) as session:
            session.run("loss")
            session.run("loss")
    theirs.close()
    assert (1, "loss", 2.0) in scalars(tmp_path)
    assert (2, "message", 4.0) in scalars(tmp_path)
    histograms = [v.tag for e in read_events(tmp_path) for v in e.summary.value if v.HasField("histo")]
    assert histograms == ["array", "array"]
    assert [each for each in least.written if each[0] != "global_step/sec"] == [
        ("loss", 2.0, 1),
        ("message", 4.0, 1),
        ("loss", 2.0, 2),
        ("message", 4.0, 2),
    ]
    assert [each[0] for each in least.written].count("global_step/sec") == 1
    assert caplog.text.count("Cannot write a summary of 'array'") == 1  # by the one without histograms


@pytest.mark.parametrize("hook", [SummarySaverHook, StepCounterHook])
def test_what_is_no_writer_is_refused_at_once(hook: Any, tmp_path: Path) -> None:
    more = {"summary_op": "y", "save_steps": 1} if hook is SummarySaverHook else {}
    with pytest.raises(TypeError, match=r"add_scalar\(tag, value, step\).*got str"):
        hook(summary_writer=str(tmp_path), **more)


def test_a_writer_that_fails_does_not_stop_the_training(caplog: pytest.LogCaptureFixture) -> None:
    class Full:
        def add_scalar(self, tag: str, value: float, step: int) -> None:
            raise OSError("no space left")

    hooks = [
        SummarySaverHook(save_steps=1, summary_writer=Full(), summary_op="y"),
        StepCounterHook(every_n_steps=1, summary_writer=Full()),
    ]
    with MonitoredSession(CounterSession(), hooks) as session:
        for _ in range(3):
            session.run("y")
    assert caplog.text.count("no space left") == 2, "each says so once"
