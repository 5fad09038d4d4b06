"""The graph of a program is learned by running it, and settles."""

from __future__ import annotations

from tensortap.records import Node, TensorSpec
from tensortap.seam.graph import Graph


def add(*inputs, shape=(2,)):
    return Node("model/add", "numpy::add", inputs, outputs=(TensorSpec("float32", shape),))


def test_runs_that_take_turns_settle():
    """One name, two definitions: each run keeps its own, and nothing is new after the first of each."""
    graph = Graph()
    runs = [[add("x:0")], [add("y:0")]]
    for nodes in runs:
        graph.record(nodes)
    version = graph.version
    for _ in range(3):
        for nodes in runs:
            graph.record(nodes)
            assert [node.inputs for node in graph.settled(nodes)] == [nodes[0].inputs]
    assert graph.version == version


def test_nodes_that_are_built_anew_are_known_by_what_they_are():
    """As by an engine that does not keep all definitions of a name that comes in turns."""
    graph = Graph()
    for nodes in ([add("x:0")], [add("y:0")]):
        graph.record(nodes)
    version = graph.version
    for inputs in ("x:0", "y:0", "x:0"):
        graph.record([add(inputs), Node("another", "numpy::neg", (inputs,))])
    assert graph.version == version + 2, "another, of each"
    graph.record([add("z:0")])
    assert graph.version == version + 3
    assert graph.node("model/add").inputs == ("z:0",)


def test_what_varies_is_unknown_in_all_runs():
    graph = Graph()
    runs = [[add("x:0")], [add("y:0")]]
    for nodes in (*runs, *runs):
        graph.record(nodes)
    version = graph.version
    graph.record([add("y:0", shape=(3,))])
    assert graph.version > version
    graph.record(runs[0])
    assert graph.settled(runs[0])[0].outputs == (TensorSpec("float32", (None,)),)


def test_a_name_that_changes_leaves_others_as_they_are():
    """A program of two phases, in which one name stands for values of other ranks: all else stays in place."""
    graph = Graph()
    steady = Node("model/mul", "numpy::mul", ("x:0",), outputs=(TensorSpec("float32", (3,)),))
    phases = [
        [steady, add("x:0", shape=())],
        [steady, add("y:0", shape=(3,))],
        [steady, add("z:0", shape=())],
    ]
    for nodes in phases * 2:
        graph.record(nodes)
    version = graph.version
    for nodes in phases * 2:
        graph.record(list(nodes))
        first, second = graph.settled(nodes)
        assert first is steady
        assert (second.inputs, second.outputs) == (nodes[1].inputs, nodes[1].outputs)
    assert graph.version == version
