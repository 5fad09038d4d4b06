"""Debug-op texts (D20)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.errors import InvalidArgumentError
from tensortap.watch.grammar import DebugOpText, format_debug_op, parse_debug_op
from tensortap.watch.plan import make_op

words = st.text("abcXYZ_019.-+", min_size=1, max_size=8)
spaces = st.text(" \t", max_size=2)


@given(words, st.dictionaries(words, words, max_size=4))
def test_what_is_formatted_is_parsed_back(name, attributes):
    assert parse_debug_op(format_debug_op(name, attributes)) == DebugOpText(name, attributes)


@given(words, st.dictionaries(words, words, min_size=1, max_size=3), spaces, st.integers(0, 2))
def test_whitespace_and_stray_semicolons_do_not_count(name, attributes, space, stray):
    pairs = [f"{space}{key}{space}={space}{value}{space}" for key, value in attributes.items()]
    text = f"{name}({';' * stray}{(';' + space).join(pairs)};{space})"
    assert parse_debug_op(text) == DebugOpText(name, attributes)


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused_with_its_own_words(text):
    try:
        message = parse_debug_op(text).name
    except InvalidArgumentError as error:
        message = error.message.replace(repr(text), text)
    assert message
    assert message in text or text in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "(a=1)",
        "Op(a=1",
        "Op a=1)",
        "Op)a=1(",
        "Op(a=1)x",
        "Op(a)",
        "Op(=1)",
        "Op(a=)",
        "Op(a=1;a=2)",
    ],
)
def test_malformed_texts_are_refused(text):
    with pytest.raises(InvalidArgumentError, match="Malformed debug op"):
        parse_debug_op(text)


def test_empty_parentheses_are_fine():
    assert parse_debug_op("DebugIdentity()") == DebugOpText("DebugIdentity")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DebugNumericSummary(colour=red)", "1 attribute key"),
        ("DebugNumericSummary(mute_if_healthy=perhaps)", "perhaps"),
        ("DebugIdentitty", "DebugIdentity"),
    ],
)
def test_what_the_op_does_not_know_is_refused_where_it_is_written(text, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make_op(text)
