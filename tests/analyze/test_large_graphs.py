"""The work of an analysis grows with the edges of a graph, not with the paths through it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from tensortap.analyze.facts import RunFacts
from tensortap.analyze.first_bad import search
from tensortap.analyze.graph import edges_in, edges_out, find_path, tree
from tensortap.analyze.health import Health
from tensortap.records import Node, RunInfo, TensorSpec
from tensortap.suggest import nearest

FLOATS = (TensorSpec("float32", (4,)),)
GOOD, BAD = Health.of_value(np.ones(4)), Health.of_value(np.full(4, np.nan))


class Counted(Mapping[str, Node]):
    """Nodes that can be looked up only so often: more is a walk that does not end in time."""

    def __init__(self, nodes: list[Node], per_edge: int) -> None:
        self._nodes = {node.name: node for node in nodes}
        edges = sum(len(node.inputs) + len(node.control_inputs) + 1 for node in nodes)
        self.left = per_edge * edges

    def __getitem__(self, name: str) -> Node:
        self.left -= 1
        assert self.left > 0, "more work than there are edges"
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def facts_of(nodes, healths, per_edge=30):
    return RunFacts(RunInfo(0, 7, 1), Counted(nodes, per_edge), healths)


def node(name, op, inputs=(), control=()):
    return Node(
        name, op, inputs=tuple(f"{each}:0" for each in inputs), control_inputs=tuple(control), outputs=FLOATS
    )


def dense(count, degree, ops, seed=0):
    """Every node made of many others, in circles."""
    chance = random.Random(seed)
    names = [f"n{place}" for place in range(count)]
    return [
        node(name, chance.choice(ops), chance.sample(names, degree), chance.sample(names, 2))
        for name in names
    ]


def chain(count, op, first="Placeholder"):
    return [node("n0", first), *(node(f"n{i}", op, [f"n{i - 1}"]) for i in range(1, count))]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("recorded", ["one", "half", "all"])
def test_dense_graphs_with_circles(recorded, seed):
    nodes = dense(400, 12, ["aten::view", "aten::slice", "aten::add", "aten::add_", "aten::mul"], seed)
    chosen = {"one": nodes[:1], "half": nodes[::2], "all": nodes}[recorded]
    bad = chosen[len(chosen) // 2 :]
    healths = {each.tensor(0): BAD if each in bad else GOOD for each in chosen}
    report = search(facts_of(nodes, healths))
    assert report.bad == len(bad)


def test_everything_bad_in_a_circle_is_no_health():
    nodes = dense(50, 5, ["aten::add"])
    report = search(facts_of(nodes, {each.tensor(0): BAD for each in nodes}))
    assert report.first_bad is not None
    assert report.first_bad.node.name == "n0"


def test_views_of_views_that_nobody_recorded():
    count = 20_000
    nodes = [*chain(count, "aten::view"), *(node(f"m{i}", "aten::add", [f"n{i}"]) for i in range(count))]
    healths = {"n0:0": BAD, **{f"m{i}:0": BAD for i in range(count)}}
    report = search(facts_of(nodes, healths))
    assert [each.node.name for each in report.findings] == ["n0"]
    facts = facts_of(nodes, healths)
    assert all(facts.health_behind(f"n{i}:0") is BAD for i in range(count))
    facts = facts_of(chain(count, "aten::slice"), {"n0:0": GOOD})
    assert {facts.behind(f"n{i}:0") for i in range(1, count)} == {(GOOD, "n0:0")}
    assert facts.behind("n0:0") == (GOOD, None)


def test_a_parameter_that_is_written_to_again_and_again():
    count = 20_000
    facts = facts_of(chain(count, "aten::add_", first="Variable"), {})
    assert {facts.written_variable(f"n{i}:0") for i in range(1, count)} == {"n0"}
    assert facts.written_variable("n0:0") is None
    circle = [node("a", "aten::add_", ["b"]), node("b", "aten::add_", ["a"])]
    assert facts_of(circle, {}).written_variable("a:0") is None


@pytest.mark.parametrize("edges", [edges_in, edges_out])
def test_trees_of_a_graph_in_which_everything_hangs_together(edges):
    names = [f"n{place}" for place in range(120)]
    nodes = [node(name, "aten::add", names) for name in names]
    facts = facts_of(nodes, {}, per_edge=6)
    branches = list(tree(facts, nodes[0], edges, depth=100))
    assert len(branches) < 120 * 120 + 1


def test_a_path_through_a_hundred_thousand_nodes():
    nodes = chain(100_000, "aten::add")
    path = find_path(facts_of(nodes, {}), nodes[0], nodes[-1])
    assert path is not None
    assert len(path) == 100_000


def test_a_suggestion_among_very_many_names(monkeypatch):
    pool = [f"block{place}/add" for place in range(200_000)]
    compared = []

    def get_close_matches(name, candidates, *limits):
        compared.append(len(candidates))
        return candidates[:1]

    monkeypatch.setattr("difflib.get_close_matches", get_close_matches)
    assert nearest("blok/add", pool) == " Did you mean 'block0/add'?"
    assert max(compared) <= 20_000
