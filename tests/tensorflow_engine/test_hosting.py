"""Our hooks in monitored sessions of TensorFlow's, TensorFlow's sessions and hooks in ours, and wrappers around all."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tensortap as tt
from tensortap.reader.session_dir import SessionDir
from tensortap.server.debug_server import DebugServer


class Notes(tt.SessionRunHook):
    def __init__(self, fetches):
        self.fetches, self.seen = fetches, []

    def after_create_session(self, session, coord):
        self.session = session

    def before_run(self, run_context):
        return tt.SessionRunArgs(self.fetches)

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results)

    def on_error(self, session, error):
        self.error = error


def test_all_our_hooks_live_in_a_training_session_of_tensorflow(v1, model, tmp_path, caplog):
    caplog.set_level("INFO", "tensortap")
    notes = Notes({"loss": model.loss, "weight": "dense/weight:0", "step": "global_step:0"})
    hooks = [
        tt.StopAtStepHook(last_step=4),
        tt.CheckpointSaverHook(tmp_path, save_steps=2),
        tt.LoggingTensorHook(["loss:0"], every_n_iter=2),
        tt.NanTensorHook(model.loss),
        tt.StepCounterHook(every_n_steps=1, output_dir=tmp_path),
        tt.SummarySaverHook(save_steps=1, output_dir=tmp_path, summary_op="loss:0"),
        tt.FinalOpsHook({"weight": model.weight}),
        tt.FeedFnHook(lambda: {model.x: model.data}),
        tt.ProfilerHook(save_steps=2, output_dir=tmp_path),
        tt.DumpingDebugHook(tmp_path / "dumps", tt.WatchOptions("DebugNumericSummary")),
        notes,
    ]
    with v1.train.MonitoredTrainingSession(
        hooks=hooks, checkpoint_dir=str(tmp_path), save_checkpoint_secs=None, save_summaries_steps=None
    ) as session:
        while not session.should_stop():
            session.run(model.train)
    assert [each["step"] for each in notes.seen] == [0, 1, 2, 3]
    assert notes.seen[0]["loss"] == pytest.approx(np.log(1.5))
    np.testing.assert_array_equal(hooks[6].final_ops_values["weight"], notes.seen[-1]["weight"])
    assert v1.train.latest_checkpoint(str(tmp_path)).endswith(
        "model.ckpt-4"
    )  # TensorFlow's own saver wrote it
    assert len(SessionDir(tmp_path / "dumps").runs) == 4
    assert any("loss:0 = 0.4054" in message for message in caplog.messages)
    trace = json.loads((tmp_path / "timeline-4.json").read_text())
    lines = {str(event.get("args", {}).get("source", "")) for event in trace["traceEvents"]}
    assert any("conftest.py" in line for line in lines), lines


def test_two_debug_hooks_record_the_same_run(v1, model, tmp_path):
    hooks = [
        tt.DumpingDebugHook(tmp_path / "health", tt.WatchOptions("DebugNumericSummary")),
        tt.DumpingDebugHook(tmp_path / "values", tt.WatchOptions(node_name_regex_allowlist="log$")),
    ]
    with v1.train.MonitoredSession(hooks=hooks) as session:
        for _ in range(2):
            session.run(model.train, {model.x: model.data})
    health, values = (SessionDir(tmp_path / name).run(1) for name in ("health", "values"))
    assert {datum.watch_key for datum in values.dumped_tensor_data} == {"log:0:DebugIdentity"}
    assert "log:0:DebugNumericSummary" in {datum.watch_key for datum in health.dumped_tensor_data}
    assert not [name for name in health.nodes() if "tap" in name]


def test_a_run_that_fails_is_recorded_and_the_hook_learns_of_it(tf, v1, model, tmp_path):
    wrong = tf.reshape(model.hidden, [-1, 3, 2, 7], name="wrong")
    notes, dumping = Notes(None), tt.DumpingDebugHook(tmp_path / "root")
    with (
        pytest.raises(tf.errors.InvalidArgumentError),
        v1.train.MonitoredSession(hooks=[dumping, notes]) as session,
    ):
        session.run(model.train, {model.x: model.data})
        session.run(wrong, {model.x: model.data})
    runs = SessionDir(tmp_path / "root")
    assert len(runs.runs) == 2
    assert [each.node_name for each in runs.run(1).dumped_tensor_data if each.node_name == "dense/relu"]
    assert isinstance(notes.error, tf.errors.InvalidArgumentError)


def test_tensorflows_hooks_live_in_our_session(v1, model, raw, tmp_path):
    summary = v1.summary.scalar("the_loss", model.loss)
    hooks = [
        v1.train.StopAtStepHook(last_step=3),
        v1.train.CheckpointSaverHook(str(tmp_path), save_steps=1, saver=v1.train.Saver()),
        v1.train.SummarySaverHook(save_steps=1, output_dir=str(tmp_path), summary_op=summary),
        v1.train.NanTensorHook(model.loss),
        v1.train.ProfilerHook(save_steps=1, output_dir=str(tmp_path)),
    ]
    with tt.MonitoredSession(raw, hooks=hooks) as session:
        while not session.should_stop():
            session.run(model.train, {model.x: model.data})
    assert v1.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-3")
    assert list(tmp_path.glob("timeline-*.json"))


def test_a_session_creator_of_tensorflow_makes_our_session(v1, model):
    notes = Notes("loss:0")
    with tt.MonitoredSession(v1.train.ChiefSessionCreator(), hooks=[notes]) as session:
        session.run(model.train, {model.x: model.data})
    assert notes.seen == [pytest.approx(np.log(1.5))]
    assert isinstance(notes.session, tt.tensorflow.Session)


def test_a_session_is_wrapped(v1, model, raw, tmp_path):
    with tt.DumpingDebugWrapperSession(raw, tmp_path / "raw") as wrapped:
        assert wrapped.session is raw
        first = wrapped.run(model.loss, {model.x: model.data})
        assert model.loss.eval({model.x: model.data}) == first  # through the wrapper, as its default session
        assert wrapped.make_callable(model.loss, [model.x])(model.data) == first
        error = wrapped.run(model.loss, {model.x: model.data}, v1.RunOptions(timeout_in_ms=60_000))
        assert error == first
    assert len(SessionDir(tmp_path / "raw").runs) == 4


@pytest.mark.parametrize("kind", ["MonitoredSession", "MonitoredTrainingSession", "SingularMonitoredSession"])
def test_monitored_sessions_of_tensorflow_are_wrapped(v1, model, tmp_path, kind):
    with getattr(v1.train, kind)(hooks=[v1.train.StopAtStepHook(last_step=1)]) as monitored:
        wrapped = tt.DumpingDebugWrapperSession(monitored, tmp_path / "root")
        while not wrapped.should_stop():
            wrapped.run(model.train, {model.x: model.data})
    wrapped.flush()
    assert SessionDir(tmp_path / "root").run(0).get_tensors("log", 0, "DebugIdentity")


def test_what_is_streamed_from_tensorflows_session_is_what_a_dump_has(v1, model, tmp_path):
    with DebugServer(tmp_path / "server", http_port=None) as server:
        hooks = [tt.GrpcDebugHook(server.address), tt.DumpingDebugHook(tmp_path / "dumps")]
        with v1.train.MonitoredSession(hooks=hooks) as session:
            session.run(model.train, {model.x: model.data})
        (streamed,) = (SessionDir(path).run(0) for path in server.root.iterdir())
        dumped = SessionDir(tmp_path / "dumps").run(0)
    keys = [sorted(datum.watch_key for datum in dump.dumped_tensor_data) for dump in (streamed, dumped)]
    assert keys[0] == keys[1]
    assert set(streamed.nodes()) == set(dumped.nodes())
