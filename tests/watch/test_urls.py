"""Debug URLs (D22, D23/X23)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.watch.urls import as_url_list, file_url, parse_debug_url


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("file:///tmp/run_1_0", ("file", "", 0, "/tmp/run_1_0")),
        ("FILE:///Tmp/Run", ("file", "", 0, "/Tmp/Run")),
        ("grpc://localhost:6064", ("grpc", "localhost", 6064, "")),
        ("Grpc://localhost:6064/a/b", ("grpc", "localhost", 6064, "/a/b")),
        ("grpc://[::1]:6064", ("grpc", "::1", 6064, "")),
        ("memcbk:///key", ("memcbk", "", 0, "key")),
    ],
)
def test_the_parts_of_a_url(text, parts):
    url = parse_debug_url(text)
    assert (url.scheme, url.host, url.port, url.path) == parts


@pytest.mark.parametrize(
    "text",
    ["", "/tmp/x", "file:/tmp/x", "file://", "http://a", "grpc://localhost", "grpc://:1", "grpc://a:0",
     "grpc://a:x", "grpc://a:99999", "memcbk://key", "memcbk:///"],
)  # fmt: skip
def test_anything_else_is_refused_and_the_forms_are_shown(text):
    with pytest.raises(ValueError, match=r"no debug URL.*grpc://host:port"):
        parse_debug_url(text)


@given(st.text(st.characters(codec="utf-8"), min_size=1).map(lambda name: "/tmp/" + name))
def test_a_directory_survives_being_a_url(path):
    assert parse_debug_url(file_url(path)).path == path


@pytest.mark.parametrize("text", ["file:///a/b", "grpc://h:1/p", "grpc://[::1]:7", "memcbk:///k"])
def test_printing_gives_the_url_back(text):
    assert str(parse_debug_url(text)) == text
    assert str(parse_debug_url(text.upper())).startswith(text.partition(":")[0])


def test_one_url_or_several():
    assert as_url_list("file:///a") == ["file:///a"]
    assert as_url_list(None) == []
    with pytest.raises(ValueError, match="nonsense"):
        as_url_list(["file:///a", "nonsense"])
