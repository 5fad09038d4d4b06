"""Programs followed as `tensortap run` does: what is wrong with them is found, and nothing of them is changed."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.jax_engine.following import followed, text_of
from tests.jax_engine.healthy import HEALTHY
from tests.jax_engine.planted import PLANTS


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name, tmp_path):
    plant = PLANTS[name]
    _, report, _ = followed(plant.program, tmp_path / "root")
    found = report.first_bad
    assert found is not None
    assert found.node.op_type == plant.op
    assert text_of(found.source).rstrip().endswith("# BUG")
    assert found.step == plant.step or (plant.step == 0 and found.step == -1)
    assert plant.cause in found.cause.kind
    assert plant.iteration in (found.during or "")


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_is_left_alone(name, tmp_path):
    plain = bits(HEALTHY[name]())
    result, report, seen = followed(HEALTHY[name], tmp_path / "root")
    assert report.first_bad is None
    assert bits(result) == plain
    assert seen.checked


def bits(results):
    """What a program returned, to the last bit."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(results)]
