"""What is seen of a run: names, loops, branches, functions, bad values, and what is missing and why."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import tensortap as tt
from tensortap.commands import main
from tensortap.reader.session_dir import SessionDir
from tensortap.sink.base import notices
from tensortap.sink.memory import collect

HEALTH = tt.WatchOptions("DebugNumericSummary", keep_bad=4)


@pytest.fixture(params=["native", "portable"])
def observer(request, monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", request.param)
    return request.param


def dumped(tmp_path, session, fetches, feeds=None, watch=None, runs=2):
    """The last of several runs: the portable observer knows the graph from the second on."""
    with tt.DumpingDebugWrapperSession(session, tmp_path / "root", watch) as wrapped:
        for _ in range(runs):
            wrapped.run(fetches, feeds)
    return SessionDir(tmp_path / "root").run(runs - 1)


def values(dump, node, slot=0):
    return [np.asarray(each).tolist() for each in dump.get_tensors(node, slot, "DebugIdentity")]


def test_loops_branches_and_functions_have_the_names_of_their_bodies(tf, v1, observer, tmp_path):
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [], name="x")

        @tf.function
        def halved(a):
            return tf.divide(a, 2.0, name="half")

        def body(i, total):
            return i + 1, tf.cond(i > 0, lambda: tf.square(total), lambda: tf.negative(total))

        _, total = tf.while_loop(lambda i, total: i < 3, body, [0, x], name="loop")
        result = tf.identity(halved(total), name="result")
        dump = dumped(tmp_path, tt.tensorflow.Session(), result, {x: 3.0})
    assert values(dump, "loop/body/cond/else/Neg") == [-3.0]
    assert values(dump, "loop/body/cond/then/Square") == [9.0, 81.0]  # an execution for every iteration
    assert values(dump, "x") == [3.0]
    assert [40.5] in [values(dump, name) for name in dump.nodes() if name.endswith("half")]
    (square,) = [each for each in SessionDir(tmp_path / "root").run(1).nodes() if each.endswith("Square")]
    assert square == "loop/body/cond/then/Square"


def test_old_loops_and_old_variables(tf, v1, observer, tmp_path):
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default():
            old = v1.get_variable("old", initializer=2.0, use_resource=False)
            _, total = tf.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * old), [0, 1.0], name="loop")
            dump = dumped(tmp_path, tt.tensorflow.Session(), total)
    finally:
        v1.enable_control_flow_v2()
    assert values(dump, "loop/mul") == [2.0, 4.0, 8.0]
    assert values(dump, "old") == [2.0]


def test_what_goes_from_device_to_device_keeps_its_name(tf, v1, tmp_path):
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2], name="x")
        with tf.device("/cpu:1"):
            doubled = tf.multiply(x, 2.0, name="doubled")
        with tf.device("/cpu:0"):
            summed = tf.reduce_sum(tf.square(doubled, name="squared"), name="summed")
        session = tt.tensorflow.Session(config=v1.ConfigProto(device_count={"CPU": 2}))
        dump = dumped(tmp_path, session, summed, {x: [1.0, 2.0]})
    assert values(dump, "doubled") == [[2.0, 4.0]]
    assert values(dump, "squared") == [[4.0, 16.0]]
    assert dump.node_inputs("squared") == ["doubled"]
    assert len(dump.devices()) == 2


def test_what_was_fused_is_said(model, raw, caplog):
    session = tt.tensorflow.Session(raw)
    options = tt.RunOptions()
    tt.add_debug_tensor_watch(options, "dense/matmul", debug_urls="memcbk:///seen")
    tt.add_debug_tensor_watch(options, "dense/relu", debug_urls="memcbk:///seen")
    tt.add_debug_tensor_watch(options, "log", debug_urls="memcbk:///seen")
    tt.add_debug_tensor_watch(options, "gradients/log_grad/mul", debug_urls="memcbk:///seen")
    with collect("seen") as records:
        session.run(model.loss, {"x": model.data}, options)
    assert {record.node_name for record in records} == {"log"}
    said = "\n".join(caplog.messages)
    assert "dense/matmul:0: it was fused into 'dense/BiasAdd' (_FusedMatMul)" in said
    assert "dense/relu:0: it was fused into 'log' (_UnaryOpsComposition)" in said
    assert "gradients/log_grad/mul:0: nothing that was fetched needs it, so it was pruned" in said


def test_what_an_update_writes_is_seen(model, raw, tmp_path):
    dump = dumped(tmp_path, raw, model.train, {model.x: model.data}, runs=1)
    (update,) = [name for name in dump.nodes() if name.endswith("weight/ResourceApplyGradientDescent")]
    np.testing.assert_array_equal(values(dump, update)[0], raw.run(model.weight))


def test_other_debug_ops_dtypes_and_strings(tf, v1, tmp_path):
    with tf.Graph().as_default():
        text = tf.strings.join([v1.placeholder(tf.string, [2], name="text"), ["!", "?"]], name="joined")
        half = tf.cast(v1.placeholder(tf.float32, [2], name="x"), tf.bfloat16, name="half")
        watch = tt.WatchOptions(
            ["DebugIdentity", "DebugNanCount"], node_name_regex_allowlist="(joined|half)$"
        )
        dump = dumped(
            tmp_path, tt.tensorflow.Session(), [text, half], {"text": ["a", "b"], "x": [1.5, np.nan]}, watch
        )
    assert dump.get_tensors("joined", 0, "DebugIdentity")[0].tolist() == [b"a!", b"b?"]
    assert dump.get_tensors("half", 0, "DebugIdentity")[0].astype(float)[0] == 1.5
    assert dump.get_tensors("half", 0, "DebugNanCount")[0].tolist() == [1]


def test_losses_and_variables_are_those_of_an_unwatched_training(tf, v1, tmp_path):
    def trained(watch):
        with tf.Graph().as_default():
            v1.set_random_seed(7)
            x = v1.placeholder(tf.float32, [None, 8])
            weight = v1.get_variable("w", [8, 8])
            hidden = v1.nn.dropout(tf.nn.relu(x @ weight), rate=0.5)
            loss = tf.reduce_mean(tf.square(hidden - x))
            train = v1.train.AdamOptimizer(0.01).minimize(loss)
            with v1.Session() as raw:
                raw.run(v1.global_variables_initializer())
                session = (
                    raw if watch is None else tt.DumpingDebugWrapperSession(raw, tmp_path / "root", watch)
                )
                data = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
                losses = [session.run([loss, train], {x: data})[0] for _ in range(4)]
                return losses, raw.run(weight).tobytes()

    assert trained(None) == trained(HEALTH)


@pytest.mark.parametrize(
    ("make", "node", "cause"),
    [
        (lambda tf, x: tf.math.log(x - 1.0, name="bad"), "bad", "log"),
        (lambda tf, x: tf.sqrt(x - 2.0, name="bad"), "bad", "negative"),
        (lambda tf, x: tf.divide(x, x - 1.0, name="bad"), "bad", "zero"),
        (lambda tf, x: tf.exp(x * 1000.0, name="bad"), "bad", "exp"),
        (lambda tf, x: tf.cast(tf.cast(x * 1e20, tf.float64) * 1e25, tf.float32, name="bad"), "bad", ""),
        (lambda tf, x: tf.cond(x[0] > 0, lambda: tf.math.log(-x), lambda: x), "cond/then/Log", "log"),
        (
            lambda tf, x: tf.while_loop(lambda i, v: i < 9, lambda i, v: (i + 1, tf.exp(v)), [0, x])[1],
            "while/body/Exp",
            "exp",
        ),
    ],
)
def test_planted_failures_are_answered_with_op_line_and_step(tf, v1, tmp_path, capsys, make, node, cause):
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [2], name="x")
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(make(tf, x), name="loss")
        with tf.control_dependencies([loss]):
            train = step.assign_add(1).op
        hook = tt.DumpingDebugHook(tmp_path / "root", HEALTH)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            for value in (3.0, 1.0) if "while" not in node else (-40.0, 1.0):
                session.run([loss, train], {x: [value, value]})
    assert main(["why", str(tmp_path / "root"), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)["first_bad"]
    assert answer["node"] == node
    assert answer["source"]["file"].endswith("test_watching.py")
    if node == "bad" and cause in ("log", "negative", "zero"):
        assert answer["step"] == 1
    assert cause in json.dumps(answer).lower()


@pytest.mark.parametrize(
    ("device", "op", "kind"),
    [("TPU:0", "Add", "TPU"), ("CPU:0", "TPUExecute", "TPU"), ("GPU:1", "Add", "GPU")],
)
def test_what_another_device_computes_is_said_once_not_to_be_seen(tf, device, op, kind, caplog):
    """What TensorFlow tells of such graphs; there is no such device here."""
    from tensortap.engines.tensorflow.observer.interface import ExecutedGraph, ExecutedNode
    from tensortap.engines.tensorflow.watching import tell_if_elsewhere

    notices.forget()
    full = f"/job:localhost/replica:0/task:0/device:{device}"
    for _ in range(2):
        tell_if_elsewhere(ExecutedGraph(0, "", full, (ExecutedNode("y", op, full, (), ("float32",)),), b""))
    (said,) = caplog.messages
    assert f"computes on a {kind}" in said


@pytest.mark.skipif(not os.environ.get("TENSORTAP_SLOW_TESTS"), reason="takes 5 GB")
def test_a_tensor_beyond_two_gigabytes_is_summarised_and_its_value_is_counted_as_left_out(tf, v1, tmp_path):
    """TensorFlow's own debugger loses it without a word."""
    count = (1 << 29) + 1000
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [], name="x")
        large = tf.fill([count], x, name="large")
        fetches = tf.reduce_max(tf.sqrt(large, name="root"), name="most")
        dump = dumped(tmp_path, session, fetches, {x: -1.0}, HEALTH, runs=1)
        (pill,) = dump.get_tensors("root", 0, "DebugNumericSummary")
        assert (pill[1], pill[2]) == (count, count)  # elements, NaN
        with tt.DumpingDebugWrapperSession(session, tmp_path / "values") as wrapped:
            wrapped.run(fetches, {x: 4.0})
        whole = SessionDir(tmp_path / "values").run(0)
        names = {each.node_name for each in whole.dumped_tensor_data}
        assert "most" in names
        assert "root" in names or whole.source.counts["dropped"] > 0
