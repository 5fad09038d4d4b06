"""Walks through the graph, source lines, names, overviews, and which runs need to be looked at."""

from __future__ import annotations

import math

import pytest

from tensortap.analyze.facts import facts_of_dump, module_of, phase_of
from tensortap.analyze.graph import edges_in, edges_out, find_path, node_named, tree
from tensortap.analyze.lines import find_file, source_files
from tensortap.analyze.overview import overview_of
from tensortap.reader import SessionDir
from tensortap.records import Node
from tests.analyze.planted import PLANTS, Net, Plant, batches, squares, train, trained

BY_NAME = {case.name: case for case in PLANTS}


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return SessionDir(train(BY_NAME["bad_batch"], tmp_path_factory.mktemp("queries") / "dumps"))


@pytest.fixture(scope="module")
def facts(session):
    return facts_of_dump(session.run(2))


def test_only_runs_that_may_be_bad_are_suspected(session, tmp_path):
    assert session.suspects() == {run.name for run in session.runs[2:]}
    # More runs than the history keeps ungrouped, and one whose pills never reached it.
    long = SessionDir(train(Plant(lambda: trained(Net(), squares, batches(70))), tmp_path))
    assert long.suspects() == set()
    (tmp_path / "health" / "task_0.sqlite3").unlink()
    assert len(long.suspects()) == 70


def test_runs_with_values_only_are_always_suspected(tmp_path):
    healthy = Plant(lambda: trained(Net(), squares, batches(2)))
    assert len(SessionDir(train(healthy, tmp_path, ["DebugIdentity"])).suspects()) == 2


def test_a_tree_opens_every_node_once(facts):
    node = node_named(facts, "model/last/addmm:0")
    branches = list(tree(facts, node, edges_in, depth=5))
    assert [each.tensor for each in branches if each.depth == 1] == [
        "model/last/bias:0",
        "model/tanh:0",
        "model/last/t:0",
    ]
    assert any(each.tensor == "x:0" for each in branches)
    users = {each.tensor for each in tree(facts, node_named(facts, "x"), edges_out, depth=1)}
    assert users == {"model/first/addmm", "gradients/model/first/addmm/mm"}


def test_a_path_is_a_shortest_one(facts):
    path = find_path(facts, node_named(facts, "x"), node_named(facts, "mean"))
    assert [each.name for each in path] == [
        "x",
        "model/first/addmm",
        "model/tanh",
        "model/last/addmm",
        "pow",
        "mean",
    ]
    assert find_path(facts, node_named(facts, "mean"), node_named(facts, "x")) is None


def test_unknown_nodes_are_suggested(facts):
    with pytest.raises(LookupError, match="Did you mean 'model/tanh'"):
        node_named(facts, "model/tanhh")


def test_source_lines(facts):
    files = source_files(facts)
    file = find_file(files, "analyze/planted.py")
    assert file.bad > 0
    assert all(node.source.line == line for line, nodes in file.lines.items() for node in nodes)
    with pytest.raises(LookupError, match="No node of this run comes from"):
        find_file(files, "nowhere.py")


def test_an_overview_needs_pills_only(session):
    first = overview_of(facts_of_dump(session.run(0)))
    assert first.loss == pytest.approx(0.1645, abs=1e-3)
    assert (first.nan, first.inf) == (0, 0)
    assert first.gradients > 0
    assert first.parameters > first.gradients
    assert math.isnan(overview_of(facts_of_dump(session.run(2))).gradients)


@pytest.mark.parametrize(
    ("name", "op_type", "forward", "phase", "module"),
    [
        ("model/attn/softmax", "aten::_softmax", None, "forward", "model/attn"),
        ("mean", "aten::mean", None, "forward", None),
        ("gradients/model/fc/addmm/mm_1", "aten::mm", "model/fc/addmm", "backward", "model/fc"),
        ("gradients/model/fc/weight", "AccumulateGrad", None, "backward", "model/fc"),
        ("optimizer/AdamW/model/fc/weight/addcdiv_", "aten::addcdiv_", None, "optimizer", "model/fc"),
        ("optimizer/AdamW/model/fc/weight/exp_avg", "Variable", None, "optimizer", "model/fc"),
        ("model/fc/weight", "Variable", None, "parameter", "model/fc"),
        ("x", "Placeholder", None, "input", None),
        ("model/where/const", "Const", None, "input", "model"),
    ],
)
def test_phase_and_module(name, op_type, forward, phase, module):
    node = Node(name, op_type, forward=forward)
    assert (phase_of(node), module_of(node)) == (phase, module)
