"""Budgets of time: runs that are not watched are guarded, and what they leave bad is found all the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import tensortap as tt
from tensortap.engines.tensorflow.engine import ENGINE
from tests.engines.following import followed

HEALTH = tt.WatchOptions("DebugNumericSummary")
RUNS = 40


@pytest.fixture(params=["native", "portable"])
def observer(request, monkeypatch):
    monkeypatch.setenv("TENSORTAP_INTERCEPTOR", request.param)
    return request.param


@pytest.fixture
def model(tf, v1):
    """Settles down, unlike that of other tests."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        weight = v1.get_variable("dense/weight", initializer=np.full((3, 2), 0.5, np.float32))
        loss = tf.reduce_mean(tf.square(x @ weight))
        step = v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        data = np.ones((4, 3), np.float32)
        yield SimpleNamespace(graph=graph, x=x, weight=weight, train=train, data=data)


def batches(model, bad):
    for index in range(RUNS):
        yield {model.x: model.data if index != bad else np.full_like(model.data, np.nan)}


def guarded_hook(root):
    """Watches the first runs, and next to none after them."""
    return tt.DumpingDebugHook(root, HEALTH, budget=tt.Budget(time=1.0000001))


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_what_turns_bad_in_a_run_that_is_not_watched_is_found(v1, model, observer, tmp_path, caplog, whose):
    hook = guarded_hook(tmp_path / "root")
    if whose == "ours":
        monitored = tt.MonitoredSession(v1.train.ChiefSessionCreator(), hooks=[hook])
    else:
        monitored = v1.train.MonitoredSession(hooks=[hook])
    with monitored as session:
        for feeds in batches(model, bad=30):
            session.run(model.train, feeds)
    (said,) = [message for message in caplog.messages if "was not watched" in message]
    assert "Step 30 was not watched" in said
    assert "dense/" in said


def test_what_was_bad_before_is_no_news(v1, model, observer, tmp_path, caplog):
    with v1.train.MonitoredSession(hooks=[guarded_hook(tmp_path / "root")]) as session:
        for feeds in batches(model, bad=0):
            session.run(model.train, feeds)
    assert not [message for message in caplog.messages if "was not watched" in message]


def test_a_wrapper_with_a_budget_trains_the_same(tf, v1, model, tmp_path):
    def trained(wrap):
        with v1.Session(graph=model.graph) as raw:
            raw.run([each.initializer for each in v1.global_variables()])
            session = wrap(raw)
            for feeds in batches(model, bad=None):
                session.run(model.train, feeds)
            if session is not raw:
                session.flush()
            return raw.run(model.weight).tobytes()

    def wrapped(raw):
        return tt.DumpingDebugWrapperSession(raw, tmp_path / "root", HEALTH, budget=tt.Budget(time=1.0000001))

    assert trained(wrapped) == trained(lambda raw: raw)
    assert 0 < len(list((tmp_path / "root").glob("run_*"))) < RUNS


def in_a_function(tf, bad=None):
    weight = tf.Variable(tf.fill([3, 2], 0.5), name="weight")

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weight))
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    for index in range(RUNS):
        train_step(tf.fill([4, 3], np.nan if index == bad else 1.0))
    return weight.numpy().tobytes()


def test_a_program_is_followed_within_its_budget(tf, tmp_path):
    plain = in_a_function(tf)
    result, report, watch = followed(ENGINE, lambda: in_a_function(tf), tmp_path / "good", budget=1.0000001)
    assert (result, report.first_bad) == (plain, None)
    assert watch.seen.runs < RUNS
    assert watch.seen.steps == RUNS
    assert watch.budget.left_out > 20
    _, report, watch = followed(ENGINE, lambda: in_a_function(tf, 30), tmp_path / "bad", budget=1.0000001)
    step, what = watch.budget.bad
    assert (step, what) == (30, "weight")
    assert "made in step 30, which was not watched" in report.first_bad.origin.sentence
