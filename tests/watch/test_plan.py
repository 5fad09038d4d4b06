"""Resolved watches: which debug ops a tensor gets, and for which URLs."""

from __future__ import annotations

import pytest

from tensortap.errors import InvalidArgumentError
from tensortap.records import Node, TensorSpec
from tensortap.seam.options import DebugTensorWatch
from tensortap.seam.pattern import TensorPattern
from tensortap.watch.plan import plan_watches

A, B = "file:///a", "file:///b"
X = Node("x", "aten::mul", outputs=(TensorSpec("float32", ()),))
Y = Node("y", "aten::max", outputs=(TensorSpec("float32", ()), TensorSpec("int64", ())))


def resolved(plan, urls, node, slot=0):
    wanted = plan.wanted(node, slot)
    return (
        None if wanted is None else {op.name: [urls[each] for each in positions] for op, positions in wanted}
    )


def test_every_watch_that_matches_counts_and_nothing_counts_twice():
    """D21, and two hooks that watch the same tensor."""
    plan, urls = plan_watches(
        [
            DebugTensorWatch("x", 0, ["DebugIdentity", "DebugNanCount"], [A]),
            DebugTensorWatch("*", -1, ["DebugIdentity"], [A]),
            DebugTensorWatch("*", -1, ["DebugIdentity"], [B]),
        ]
    )
    assert resolved(plan, urls, X) == {"DebugIdentity": [A, B], "DebugNanCount": [A]}
    assert resolved(plan, urls, Y, 1) == {"DebugIdentity": [A, B]}


def test_runs_that_differ_in_their_urls_alone_share_what_was_resolved():
    first, _ = plan_watches([DebugTensorWatch("x", debug_urls=["file:///r/run_1_0"])])
    second, urls = plan_watches([DebugTensorWatch("x", debug_urls=["file:///r/run_2_1"])])
    other, _ = plan_watches([DebugTensorWatch("x", debug_urls=[A, B])])
    assert first is second
    assert urls == ["file:///r/run_2_1"]
    assert other is not first


def test_the_same_name_with_another_dtype_is_matched_again():
    pattern = TensorPattern(tensor_dtype_regex_allowlist="float")
    plan, _ = plan_watches([DebugTensorWatch("*", -1, debug_urls=[A], pattern=pattern)])
    assert plan.wanted(Node("z", "aten::to", outputs=(TensorSpec("float32", ()),)), 0) is not None
    assert plan.wanted(Node("z", "aten::to", outputs=(TensorSpec("int32", ()),)), 0) is None


def test_a_watch_that_matches_nothing_is_told_with_the_closest_names():
    """X15: the original lost such watches without a word."""
    plan, _ = plan_watches(
        [
            DebugTensorWatch("model/fc/adddmm", 0, debug_urls=[A]),
            DebugTensorWatch("y", 5, debug_urls=[A]),
            DebugTensorWatch("x", 0, debug_urls=[A]),
            DebugTensorWatch("*", -1, debug_urls=[A], pattern=TensorPattern("decoder/")),
        ]
    )
    nodes = (X, Y, Node("model/fc/addmm", "aten::addmm"))
    for node in nodes:
        plan.wanted(node, 0)
    assert plan.unmatched(nodes) == [
        "model/fc/adddmm:0: no such node. Did you mean 'model/fc/addmm'?",
        "y:5: the node has 2 outputs.",
        "node_name_regex_allowlist='decoder/': no node matched.",
    ]


def test_a_watch_that_matched_in_another_program_is_missed_in_this_one():
    plan, _ = plan_watches([DebugTensorWatch("x", 0, debug_urls=[A])])
    plan.wanted(X, 0)
    assert plan.unmatched((X,)) == []
    assert plan.unmatched((Y,)) == ["x:0: no such node."]


def test_nodes_that_watch_graph_listed_are_not_missed_one_by_one():
    plan, _ = plan_watches([DebugTensorWatch("unused", 0, debug_urls=[A], pattern=TensorPattern())])
    assert plan.unmatched((X,)) == []


def test_an_op_that_cannot_be_made_stops_the_run_before_it_starts_unless_tolerated():
    """D19: the flag reaches wildcards too (X14)."""
    with pytest.raises(InvalidArgumentError, match="NoSuchOp"):
        plan_watches([DebugTensorWatch("x", 0, ["NoSuchOp"], [A])])
    plan, urls = plan_watches([DebugTensorWatch("*", -1, ["NoSuchOp", "DebugNanCount"], [A], True)])
    assert resolved(plan, urls, X) == {"DebugNanCount": [A]}
    assert [text for text, _ in plan.left_out] == ["NoSuchOp"]


def test_an_expression_that_would_match_inside_a_name_is_told_so():
    nodes = (Node("model/attn/softmax", "aten::_softmax", outputs=(TensorSpec("float32", (2,)),)),)
    plan, _ = plan_watches(
        [DebugTensorWatch("*", -1, ["DebugNanCount"], ["memcbk:///a"], False, TensorPattern("softmax"))]
    )
    assert plan.wanted(nodes[0], 0) is None
    (sentence,) = plan.unmatched(nodes)
    assert "'.*softmax' would match 'model/attn/softmax'" in sentence
