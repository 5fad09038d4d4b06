"""Two runs side by side."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.analyze.diff import diff_runs
from tensortap.analyze.facts import RunFacts, facts_of_dump
from tensortap.analyze.health import Health
from tensortap.reader import SessionDir
from tensortap.records import Node, RunInfo, TensorSpec
from tests.analyze.planted import Net, Plant, batches, squares, train, trained


def facts(values, ops=None, record="value"):
    """A run of a chain of nodes, given by their values."""
    nodes, before = {}, ()
    for name, value in values.items():
        spec = TensorSpec(str(np.asarray(value).dtype), np.shape(value))
        nodes[name] = Node(
            name, (ops or {}).get(name, f"aten::{name.split('/')[-1]}"), before, outputs=(spec,)
        )
        before = (f"{name}:0",)
    arrays = {f"{name}:0": np.asarray(value) for name, value in values.items()}
    healths = {name: Health.of_value(array) for name, array in arrays.items()} if record != "hash" else {}
    return RunFacts(
        RunInfo(0, 0, 1),
        nodes,
        healths,
        times=dict.fromkeys(arrays, 1),
        values=arrays.get if record == "value" else lambda name: None,
        hashes=(lambda name: arrays[name].tobytes()) if record == "hash" else lambda name: None,
    )


FIRST = {"x": [1.0, 2.0], "mul": [2.0, 4.0], "log": [0.7, 1.4], "sum": 2.1}


@pytest.mark.parametrize("record", ["value", "pill", "hash"])
def test_the_first_that_differs_in_order_then_the_rest_by_size(record):
    second = {**FIRST, "log": [0.7, 1.5], "sum": 20.0}
    diff = diff_runs(facts(FIRST, record=record), facts(second, record=record))
    assert diff.first.left == "log:0"
    assert diff.first.basis == record
    if record != "hash":
        assert [each.left for each in diff.differing] == ["sum:0", "log:0"]
    assert diff_runs(facts(FIRST, record=record), facts(FIRST, record=record)).is_same


def test_values_and_pills_can_be_compared_with_each_other():
    diff = diff_runs(facts(FIRST, record="value"), facts(FIRST, record="pill"))
    assert diff.is_same
    assert {each.basis for each in diff.compared} == {"pill"}


@pytest.mark.parametrize(
    ("dtype", "error", "is_same"),
    [
        ("float32", 1e-7, True),
        ("float32", 1e-4, False),
        ("float16", 1e-4, True),
        ("float64", 1e-6, False),
        ("int64", 1, False),
    ],
)
def test_the_tolerance_depends_on_the_dtype(dtype, error, is_same):
    one, other = np.array([1, 2], dtype), (np.array([1, 2], "float64") + error).astype(dtype)
    assert diff_runs(facts({"x": one}), facts({"x": other})).is_same is is_same
    assert diff_runs(facts({"x": one}), facts({"x": other}), relative=2.0).is_same


def test_nan_equals_nan_and_nothing_else():
    nan = {"x": [np.nan, 1.0]}
    assert diff_runs(facts(nan), facts(nan)).is_same
    diff = diff_runs(facts(nan), facts({"x": [0.0, 1.0]}))
    assert diff.first.difference == np.inf
    assert "NaN or infinite in only one" in diff.first.detail
    assert diff_runs(facts({"x": [1.0]}), facts({"x": [1.0, 2.0]})).first.detail == "shape [1] and [2]"


def test_other_names_and_unequal_counts_are_aligned_by_operation_and_order():
    """As between two engines: nothing has the same name, and one has more operations."""
    ops = {"in": "aten::x", "a": "Mul", "extra": "Identity", "b": "Log", "c": "Sum"}
    other = {"in": [1.0, 2.0], "a": [2.0, 4.0], "extra": [2.0, 4.0], "b": [0.7, 9.0], "c": 9.7}
    diff = diff_runs(facts(FIRST), facts(other, ops))
    assert [(each.left, each.right) for each in diff.compared] == [
        ("x:0", "in:0"),
        ("mul:0", "a:0"),
        ("log:0", "b:0"),
        ("sum:0", "c:0"),
    ]
    assert diff.only_right == ("extra:0",)
    assert diff.first.left == "log:0"


def test_two_training_runs_part_where_they_were_changed(tmp_path):
    def session(name, lr):
        program = lambda: trained(model, squares, batches(3), torch.optim.SGD(model.parameters(), lr=lr))
        torch.manual_seed(0)
        model = Net()
        return SessionDir(train(Plant(program), tmp_path / name))

    one, same, other = session("one", 0.01), session("same", 0.01), session("other", 0.02)
    for run in range(3):
        assert diff_runs(facts_of_dump(one.run(run)), facts_of_dump(same.run(run))).is_same
    first = diff_runs(facts_of_dump(one.run(0)), facts_of_dump(other.run(0))).first
    assert first.left == "optimizer/SGD/model/first/weight/add_:0"


def test_hashes_of_real_runs(tmp_path):
    watch = lambda fetches, feeds: tt.WatchOptions(["DebugHash"])
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        with tt.DumpingDebugWrapperSession(
            tt.torch.Session(lambda x: x * 2), tmp_path / name, watch_fn=watch
        ) as session:
            session.run(None, {"x": torch.full((3,), value)})
    a, b, c = (facts_of_dump(SessionDir(tmp_path / name).run(0)) for name in "abc")
    assert diff_runs(a, b).is_same
    assert diff_runs(a, c).first.left == "x:0"
    assert diff_runs(a, c).first.basis == "hash"
