"""What TensorFlow's own debugger has dumped is explained like any other run (graph mode, its file layout)."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensortap.analyze.facts import facts_of_dump
from tensortap.analyze.overview import overview_of
from tensortap.analyze.session import search_session
from tensortap.reader import SessionDir
from tests.tensorflow_engine.healthy import HEALTHY
from tests.tensorflow_engine.plants import PLANTS

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="runs TensorFlow, which is not installed"
)
PROJECT = Path(__file__).parents[2]
EXECUTED_AS = {"Placeholder": "_Arg", "Softmax": "_MklSoftmax", "MatMul": "_MklMatMul"}
"""What the runtime may put in the place of an op."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("tensorflow")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.tensorflow_engine.dumping", str(root)],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return root


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_the_first_bad_value_is_explained(root, plant):
    found = search_session(SessionDir(root / plant.name)).first_bad
    assert found is not None
    assert plant.op in found.node.name
    assert found.node.op_type in (plant.op_type, EXECUTED_AS.get(plant.op_type))
    assert (found.cause.kind, found.phase, found.run) == (plant.kind, plant.phase, plant.step)
    assert plant.says in found.cause.sentence
    assert found.is_certain


@pytest.mark.parametrize("build", HEALTHY, ids=lambda build: build.__name__)
def test_what_is_healthy_raises_no_alarm(root, build):
    report = search_session(SessionDir(root / build.__name__))
    assert report.first_bad is None
    assert report.tensors > 10


@pytest.mark.parametrize("build", HEALTHY, ids=lambda build: build.__name__)
def test_loss_gradients_and_weights_of_a_training_run_are_known(root, build):
    rows = [overview_of(facts_of_dump(run.open())) for run in SessionDir(root / build.__name__).runs]
    for row in rows:
        assert row.loss is not None
        assert math.isfinite(row.loss)
        assert row.gradients is not None
        assert row.parameters > 0


def test_a_loop_tells_which_time_around_it_was(root):
    for name in ("loop_that_goes_too_far", "loop_of_tensorflow_1"):
        found = search_session(SessionDir(root / name)).first_bad
        assert "It was execution 3 of 4 in this run." in found.cause.proof
        (given,) = found.inputs
        assert given.health.max == pytest.approx(math.log(math.log(1.5)))


def test_numbers_that_grew_are_told_with_the_learning_rate(root):
    found = search_session(SessionDir(root / "learning_rate_too_large")).first_bad
    assert "(it is 1000)" in found.cause.advice


def test_an_update_that_shows_nothing_is_told_from_what_it_left(root):
    found = search_session(SessionDir(root / "learning_rate_of_infinity")).first_bad
    assert found.origin.sentence == (
        "It was used first in run 1, as dense/MatMul/ReadVariableOp, by dense/MatMul."
    )
    assert [each.tensor for each in found.inputs] == [
        "dense/MatMul/ReadVariableOp:0",
        "GradientDescent/learning_rate:0",
        "gradients/dense/MatMul_grad/MatMul_1:0",
    ]
    assert found.reached == ("the loss (loss:0)", "1 of 1 gradients")
