"""WatchOptions and the other forms a watch_fn may return (C21, C22)."""

from __future__ import annotations

import pytest

from tensortap.watch.options import WatchOptions, as_watch_options


def test_no_debug_op_means_the_whole_value():
    assert WatchOptions().debug_ops == ["DebugIdentity"]
    assert WatchOptions([]).debug_ops == ["DebugIdentity"]
    assert WatchOptions("DebugNanCount").debug_ops == ["DebugNanCount"]


def test_both_spellings_of_the_allow_lists():
    old = WatchOptions(
        node_name_regex_whitelist="a", op_type_regex_whitelist="b", tensor_dtype_regex_whitelist="c"
    )
    new = WatchOptions(
        node_name_regex_allowlist="a", op_type_regex_allowlist="b", tensor_dtype_regex_allowlist="c"
    )
    assert old == new
    with pytest.raises(ValueError, match="two spellings"):
        WatchOptions(node_name_regex_allowlist="a", node_name_regex_whitelist="a")
    with pytest.raises(TypeError, match="no argument 'node_regex'"):
        WatchOptions(node_regex="a")


def test_older_tuples_are_read_by_position():
    assert as_watch_options(("DebugNanCount", "fc")) == WatchOptions("DebugNanCount", "fc")
    assert as_watch_options((["DebugIdentity"], "a", "b", "c", True)) == WatchOptions(
        "DebugIdentity", "a", "b", "c", tolerate_debug_op_creation_failures=True
    )
    assert as_watch_options(None) == WatchOptions()


@pytest.mark.parametrize("returned", [7, "DebugIdentity", (), tuple("abcdef")])
def test_anything_else_says_what_a_watch_fn_returns(returned):
    with pytest.raises(TypeError, match="watch_fn must return WatchOptions"):
        as_watch_options(returned)


def test_a_bad_regular_expression_is_refused_where_it_is_written():
    with pytest.raises(ValueError, match=r"node_name_regex_allowlist='\(' is no regular expression"):
        WatchOptions(node_name_regex_allowlist="(")
    with pytest.raises(TypeError, match="op_type_regex_denylist"):
        WatchOptions(op_type_regex_denylist=7)


def test_printing_shows_what_was_given():
    shown = repr(WatchOptions("DebugNanCount", "fc", op_type_regex_denylist="Var"))
    assert shown == (
        "WatchOptions(['DebugNanCount'], node_name_regex_allowlist='fc', op_type_regex_denylist='Var')"
    )
