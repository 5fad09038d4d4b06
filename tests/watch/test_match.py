"""From options to watches (D1 to D7), on a graph that is known and on one that is not."""

from __future__ import annotations

import pytest

from tensortap.errors import InvalidArgumentError
from tensortap.records import Node, TensorSpec
from tensortap.seam.graph import Graph
from tensortap.seam.options import RunOptions
from tensortap.watch.match import (
    add_debug_tensor_watch,
    watch_graph,
    watch_graph_with_denylists,
    watch_run,
)
from tensortap.watch.options import WatchOptions

URL = "file:///tmp/run_1_0"
F32, I64 = TensorSpec("float32", (2,)), TensorSpec("int64", (2,))
NODES = [
    Node("x", "Placeholder", outputs=(F32,)),
    Node("model/fc/addmm", "aten::addmm", outputs=(F32,)),
    Node("model/max", "aten::max", outputs=(F32, I64)),
    Node("model/print", "aten::print"),
]


@pytest.fixture
def graph():
    graph = Graph()
    graph.record(NODES)
    graph.known = True
    return graph


@pytest.fixture
def options():
    return RunOptions()


def watched(options):
    return [(each.node_name, each.output_slot) for each in options.debug_options.debug_tensor_watch_opts]


def test_one_watch_is_added_with_defaults(options):
    """D1, D2."""
    add_debug_tensor_watch(options, "model/max", 1, debug_urls=[URL, "memcbk:///k"])
    (watch,) = options.debug_options.debug_tensor_watch_opts
    assert (watch.node_name, watch.output_slot) == ("model/max", 1)
    assert watch.debug_ops == ["DebugIdentity"]
    assert watch.debug_urls == [URL, "memcbk:///k"]
    assert watch.tolerate_debug_op_creation_failures is False
    assert options.debug_options.global_step == -1


def test_a_known_graph_is_listed_in_its_order_with_a_wildcard_at_the_end(options, graph):
    """D3, D5: one watch per output, none for the node without outputs."""
    watch_graph(options, graph, ["DebugIdentity", "DebugNanCount"], URL, global_step=7)
    assert watched(options) == [
        ("x", 0),
        ("model/fc/addmm", 0),
        ("model/max", 0),
        ("model/max", 1),
        ("*", -1),
    ]
    assert all(
        each.debug_ops == ["DebugIdentity", "DebugNanCount"] and each.debug_urls == [URL]
        for each in options.debug_options.debug_tensor_watch_opts
    )
    assert options.debug_options.global_step == 7


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({"node_name": "model/"}, [("model/fc/addmm", 0), ("model/max", 0), ("model/max", 1)]),
        ({"node_name": "max"}, []),
        ({"node_name": ".*max"}, [("model/max", 0), ("model/max", 1)]),
        ({"op_type": "Place"}, [("x", 0)]),
        ({"tensor_dtype": "int"}, [("model/max", 1)]),
        ({"node_name": "model/", "tensor_dtype": "float"}, [("model/fc/addmm", 0), ("model/max", 0)]),
        ({"node_name": "model/", "op_type": "aten::max", "tensor_dtype": "int64$"}, [("model/max", 1)]),
    ],
)
def test_allow_lists_match_at_the_start_and_all_of_them_count(options, graph, lists, expected):
    """D4; D5: no wildcard."""
    watch_graph(
        options, graph, debug_urls=URL, **{f"{each}_regex_allowlist": regex for each, regex in lists.items()}
    )
    assert watched(options) == expected


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({}, [("x", 0), ("model/fc/addmm", 0), ("model/max", 0), ("model/max", 1)]),
        ({"node_name": "model/"}, [("x", 0)]),
        ({"op_type": "Place", "tensor_dtype": "int"}, [("model/fc/addmm", 0), ("model/max", 0)]),
    ],
)
def test_a_hit_in_any_deny_list_excludes(options, graph, lists, expected):
    """D6: OR, and no wildcard."""
    watch_graph_with_denylists(
        options, graph, debug_urls=URL, **{f"{each}_regex_denylist": regex for each, regex in lists.items()}
    )
    assert watched(options) == expected


def test_a_graph_that_is_not_known_gets_one_watch_that_carries_the_patterns(options):
    watch_graph(options, Graph(), debug_urls=URL, op_type_regex_allowlist="aten::max")
    watch_graph_with_denylists(options, Graph(), debug_urls=URL, node_name_regex_denylist="model/")
    watch_graph(options, Graph(), debug_urls=URL)
    assert watched(options) == [("*", -1)] * 3
    allowed, denied, everything = (each.pattern for each in options.debug_options.debug_tensor_watch_opts)
    assert [node.name for node in NODES[:3] if allowed.matches(node, 0)] == ["model/max"]
    assert [node.name for node in NODES[:3] if denied.matches(node, 0)] == ["x"]
    assert everything is None


def test_wrappers_watch_by_pattern_whatever_is_known(options, graph):
    watch_run(options, WatchOptions(node_name_regex_allowlist="model/"), URL, reset_disk_byte_usage=True)
    assert watched(options) == [("*", -1)]
    assert options.debug_options.reset_disk_byte_usage


@pytest.mark.parametrize("what", ["debug_ops", "debug_urls"])
def test_nothing_to_do_is_an_error(options, graph, what):
    """D3."""
    with pytest.raises(ValueError, match=f"{what} is empty"):
        watch_graph(options, graph, **{"debug_urls": URL, what: []})


def test_mistakes_are_refused_when_they_are_made(options, graph):
    with pytest.raises(ValueError, match="no regular expression"):
        watch_graph(options, graph, debug_urls=URL, node_name_regex_allowlist="[")
    with pytest.raises(ValueError, match="no debug URL"):
        add_debug_tensor_watch(options, "x", debug_urls="/tmp/x")
    with pytest.raises(InvalidArgumentError, match="DebugNanCounts"):
        watch_graph(options, graph, "DebugNanCounts", URL)
    assert watched(options) == []


def test_an_op_that_cannot_be_made_may_be_tolerated(options, graph):
    watch_graph(options, graph, "NoSuchOp", URL, tolerate_debug_op_creation_failures=True)
    assert len(watched(options)) == 5


def test_an_unset_step_does_not_replace_one_that_is_set(options, graph):
    watch_graph(options, graph, debug_urls=URL, global_step=3)
    watch_graph(options, graph, debug_urls=URL)
    assert options.debug_options.global_step == 3
