"""A TensorFlow session as a session of ours."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import tensortap as tt


def test_fetches_and_feeds_are_tensors_ops_and_names_in_any_structure(model, raw):
    session = tt.tensorflow.Session(raw)
    found = session.run(
        {
            "tensor": model.loss,
            "name": "loss:0",
            "nested": [model.train, ("dense/weight:0", "global_step:0")],
        },
        {model.x: model.data},
    )
    assert found["tensor"] == found["name"]
    nothing, (weight, step) = found["nested"]
    assert nothing is None
    assert (weight < 0.5).all()  # a variable named in a run is read after it
    assert step == 0  # and the step before it
    assert session.run(model.loss, {"x": model.data}) != found["tensor"]
    assert session.global_step == 1


def test_variables_of_both_kinds_are_read_fed_and_put_back(tf, v1):
    with tf.Graph().as_default():
        new = v1.get_variable("new", initializer=2.0, use_resource=True)
        old = v1.get_variable("old", initializer=3.0, use_resource=False)
        product = tf.multiply(new, old, name="product")
        session = tt.tensorflow.Session()
    assert session.run(product, {"new:0": 5.0, "old:0": np.float32(7)}) == 35
    assert session.run(["new:0", "old:0", product]) == [2, 3, 6]
    with pytest.raises(tt.errors.FeedError, match=r"shape is \[\]"):
        session.run(product, {"new:0": [1.0, 2.0]})


def test_a_failing_op_is_named_with_its_line_and_is_still_tensorflows_error(tf, model, raw):
    session = tt.tensorflow.Session(raw)
    with pytest.raises(tf.errors.InvalidArgumentError) as failed:
        session.run(tf.reshape(model.hidden, [-1, 3, 2, 7], name="shaped"), {"x": model.data})
    error = failed.value
    assert isinstance(error, tt.errors.InvalidArgumentError)
    assert (error.node_name, error.error_code) == ("shaped", 3)
    assert __file__.rpartition("/")[2] in str(error)
    assert type(pickle.loads(pickle.dumps(error))) is tt.errors.InvalidArgumentError


def test_what_is_missing_or_misspelled_is_said(model, raw):
    session = tt.tensorflow.Session(raw)
    with pytest.raises(tt.errors.FeedError, match="'x'"):
        session.run("loss:0")
    with pytest.raises(tt.errors.UnknownTensorError, match="dense/relu"):
        session.run("dense/rely:0", {"x": model.data})
    with pytest.raises(TypeError, match="step="):
        session.run(None, {"x": model.data})


def test_the_graph_knows_where_ops_belong(model, raw):
    graph = tt.tensorflow.Session(raw).graph
    assert graph.node("dense/relu").module == "dense"
    gradient = graph.node("gradients/log_grad/mul")
    assert (gradient.phase, gradient.forward) == ("backward", "log")
    assert gradient.source == graph.node("log").source
    assert graph.node("log").source.file.endswith("conftest.py")
    updates = [node for node in graph.nodes if node.op_type == "ResourceApplyGradientDescent"]
    assert {(node.phase, node.module) for node in updates} == {("optimizer", "dense")}
    assert graph.node("dense/weight").phase == "parameter"
    assert graph.get_tensor_by_name("x:0") is model.x  # all that a tf.Graph can do


def test_ops_that_are_added_later_are_known(tf, model, raw):
    session = tt.tensorflow.Session(raw)
    tf.add(model.loss, 1.0, name="later")
    assert session.run("later:0", {"x": model.data}) == pytest.approx(1 + np.log(1.5))


def test_tensors_are_evaluated_through_the_default_session(model, raw):
    with tt.tensorflow.Session(raw) as session:
        assert model.loss.eval({model.x: model.data}) == session.run("loss:0", {"x": model.data})
        model.train.run({model.x: model.data})
    assert raw.run(model.weight)[0, 0] < 0.5


def test_runs_are_counted_where_the_graph_counts_nothing(tf, v1):
    with tf.Graph().as_default():
        y = tf.constant(2.0, name="y")
        session = tt.tensorflow.Session(step={"y": y}, global_step=5)
    with tt.MonitoredSession(session, hooks=[tt.StopAtStepHook(last_step=7)]) as monitored:
        while not monitored.should_stop():
            assert monitored.run("y") == 2
    assert session.global_step == 7


def test_options_and_metadata_may_be_tensorflows(v1, model, raw):
    session = tt.tensorflow.Session(raw)
    metadata = v1.RunMetadata()
    session.run(model.loss, {"x": model.data}, v1.RunOptions(trace_level=3), metadata)
    assert metadata.step_stats.dev_stats
    ours = tt.RunMetadata()
    session.run(model.loss, {"x": model.data}, tt.RunOptions(trace_level=tt.RunOptions.FULL_TRACE), ours)
    assert ours.profile.facts.ops["log/unary_ops_composition"].source_file.endswith("conftest.py")
    with pytest.raises(TypeError, match="RunOptions"):
        session.run(model.loss, {"x": model.data}, {"trace_level": 3})


def test_bfloat16_variables_survive_a_checkpoint(tf, v1, tmp_path):
    def made(value):
        with tf.Graph().as_default():
            v1.get_variable("half", initializer=tf.cast([value, 2.5], tf.bfloat16))
            return tt.tensorflow.Session()

    path = tt.Saver().save(made(1.5), tmp_path / "model.ckpt", global_step=3)
    again = made(9.0)
    tt.Saver().restore(again, path)
    assert again.run("half:0").astype(float).tolist() == [1.5, 2.5]


def test_bad_variables_are_told_apart(tf, v1):
    with tf.Graph().as_default():
        v1.get_variable("weight", initializer=[1.0, np.nan])
        v1.get_variable("buffer", initializer=[np.inf], trainable=False)
        session = tt.tensorflow.Session()
    found = {each.name: (each.kind, each.nan) for each in session.non_finite_state()}
    assert found == {"weight": ("parameter", True), "buffer": ("buffer", False)}
