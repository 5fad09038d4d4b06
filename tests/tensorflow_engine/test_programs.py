"""Programs followed as `tensortap run` does: what is wrong with them is found, and nothing of them is changed."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from tensortap.engines.tensorflow.engine import ENGINE
from tests.engines.following import followed
from tests.patience import wait_until
from tests.tensorflow_engine import modern
from tests.tensorflow_engine.healthy import HEALTHY
from tests.tensorflow_engine.plants import PLANTS

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras


def in_a_session(tf, build, has_refs=False, has_v1_loops=False):
    """What a program for graph mode gives that is run in a plain session."""
    v1 = tf.compat.v1
    (v1.disable_resource_variables if has_refs else v1.enable_resource_variables)()
    (v1.disable_control_flow_v2 if has_v1_loops else v1.enable_control_flow_v2)()
    try:
        with tf.Graph().as_default():
            tf.keras.utils.set_random_seed(1)
            program = build(tf)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                return [
                    session.run(program.fetches, {f"{name}:0": value for name, value in feeds.items()})
                    for feeds in program.feeds
                ]
    finally:
        v1.enable_resource_variables()
        v1.enable_control_flow_v2()


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_of_a_session_is_found(tf, plant, tmp_path):
    def program():
        in_a_session(tf, plant.build, plant.has_refs, plant.has_v1_loops)

    _, report, _ = followed(ENGINE, program, tmp_path / "root")
    found = report.first_bad
    assert found is not None
    assert plant.op in found.node.name
    assert found.node.op_type == plant.op_type
    assert (found.cause.kind, found.phase, found.run) == (plant.kind, plant.phase, plant.step)
    assert plant.says in found.cause.sentence
    assert found.is_certain
    if plant.line is not None:
        assert any(modern.is_at_fault(frame) for frame in found.node.stack)
    if "loop" in plant.name:
        assert "execution 3 of" in " ".join(found.cause.proof)


@pytest.mark.parametrize("plant", modern.PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_of_a_function_or_of_keras_is_found(tf, plant, tmp_path):
    _, report, _ = followed(ENGINE, lambda: plant.program(tf), tmp_path / "root")
    found = report.first_bad
    assert found is not None
    assert (found.node.op_type, found.cause.kind, found.step) == (plant.op_type, plant.kind, plant.step)
    assert plant.proof in " ".join(found.cause.proof)
    assert plant.kind == "bad-input" or any(modern.is_at_fault(frame) for frame in found.node.stack)


@pytest.mark.parametrize("build", HEALTHY, ids=lambda build: build.__name__)
def test_a_healthy_session_is_left_alone(tf, build, tmp_path):
    plain = bits(tf, in_a_session(tf, build))
    result, report, watch = followed(ENGINE, lambda: in_a_session(tf, build), tmp_path / "root")
    assert report.first_bad is None
    assert watch.seen.steps
    assert bits(tf, result) == plain


@pytest.mark.parametrize("program", modern.HEALTHY, ids=lambda program: program.__name__)
def test_a_healthy_function_or_model_is_left_alone(tf, program, tmp_path):
    plain = bits(tf, program(tf))
    result, report, watch = followed(ENGINE, lambda: program(tf), tmp_path / "root")
    assert report.first_bad is None
    assert watch.seen.steps
    assert bits(tf, result) == plain


def bits(tf, results):
    """What a program returned, to the last bit."""
    return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(results) if leaf is not None]


# --- what is not seen is said --------------------------------------------------------------------------------


def eager_loop(tf, start):
    weight = tf.Variable([start], name="weight")
    for _ in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.log(weight))
        weight.assign_sub(tape.gradient(loss, weight))
    return weight.numpy().tobytes()


def test_a_loop_outside_of_functions_is_told_that_nobody_sees_it(tf, tmp_path, caplog):
    plain = eager_loop(tf, 4.0)
    result, _, watch = followed(ENGINE, lambda: eager_loop(tf, 4.0), tmp_path / "good")
    assert result == plain
    (said,) = caplog.messages
    assert "outside of a tf.function" in said
    assert "test_programs.py:" in said
    assert watch.seen.unseen == {"gradients computed outside of a tf.function, which were not watched": 4}
    caplog.clear()
    followed(ENGINE, lambda: eager_loop(tf, 1.0), tmp_path / "bad")  # log(0) in the second iteration
    assert "The loss is not finite: 1 of 1 values in call 1 of GradientTape.gradient" in caplog.messages[1]
    assert len(caplog.messages) == 2


def test_a_program_that_was_followed_is_let_go(tf, tmp_path):
    watches = weakref.WeakSet()
    for name in ("bad", "worse"):
        program = modern.PLANTS[0].program
        _, report, watch = followed(ENGINE, lambda program=program: program(tf), tmp_path / name)
        assert report.first_bad is not None
        watches.add(watch)
        del report, watch
    wait_until(lambda: gc.collect() >= 0 and not watches)
    assert not [each for each in threading.enumerate() if each.name == "tensortap-judge"]
