"""The pieces of an initialisation: given, collected, or made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensortap.errors import GraphFinalizedError
from tensortap.hooks.saver import Saver
from tensortap.hooks.scaffold import Scaffold, missing_names, run_piece
from tensortap.seam.graph import Graph, GraphKeys

from .counter_session import CounterSession

PIECES = ["init_op", "ready_op", "ready_for_local_init_op", "local_init_op", "saver"]


def test_missing_pieces_are_made_and_stored() -> None:  # A46 A47
    with Graph().as_default() as graph:
        scaffold = Scaffold()
        assert [getattr(scaffold, piece) for piece in PIECES] == [None] * 5
        assert scaffold.finalize() is scaffold
        first = [getattr(scaffold, piece) for piece in PIECES]
        scaffold.finalize()  # may be called again
        assert [getattr(scaffold, piece) for piece in PIECES] == first
    assert None not in first
    assert isinstance(scaffold.saver, Saver)
    assert graph.get_collection(GraphKeys.SAVERS) == [scaffold.saver]
    assert graph.get_collection(GraphKeys.INIT_OP) == [scaffold.init_op]
    assert scaffold.summary_op is None
    assert graph.finalized
    with pytest.raises(GraphFinalizedError):
        graph.add_derived("late", abs, ["x:0"])


def test_default_pieces_do_nothing_and_are_always_ready() -> None:  # A46
    with Graph().as_default():
        scaffold = Scaffold().finalize()
        session = CounterSession()
    assert run_piece(session, scaffold.init_op) is None
    assert missing_names(session, scaffold.ready_op) == []
    assert session.calls == []


def test_pieces_come_from_collections() -> None:  # A46
    with Graph().as_default() as graph:
        for key in ("init_op", "ready_op", "ready_for_local_init_op", "local_init_op", "summary_op"):
            graph.add_to_collection(key, f"my {key}")
        graph.add_to_collection(GraphKeys.SAVERS, "my saver")
        scaffold = Scaffold().finalize()
    assert [getattr(scaffold, piece) for piece in (*PIECES, "summary_op")] == [
        "my init_op",
        "my ready_op",
        "my ready_for_local_init_op",
        "my local_init_op",
        "my saver",
        "my summary_op",
    ]


def test_given_pieces_win_and_are_not_stored() -> None:  # A46
    with Graph().as_default() as graph:
        graph.add_to_collection(GraphKeys.INIT_OP, "collected")
        scaffold = Scaffold(init_op="given", saver="mine").finalize()
    assert (scaffold.init_op, scaffold.saver) == ("given", "mine")
    assert graph.get_collection(GraphKeys.INIT_OP) == ["collected"]
    assert graph.get_collection(GraphKeys.SAVERS) == []


def test_two_items_in_a_collection_need_a_decision() -> None:  # A46
    with Graph().as_default() as graph:
        graph.add_to_collection(GraphKeys.SAVERS, 1)
        graph.add_to_collection(GraphKeys.SAVERS, 2)
        with pytest.raises(RuntimeError, match=r"'savers' holds 2 items.*saver=\.\.\. to the Scaffold"):
            Scaffold().finalize()
        assert Scaffold(saver=3).finalize().saver == 3


def test_finalize_needs_a_graph() -> None:  # A47
    with pytest.raises(RuntimeError, match="no default graph"):
        Scaffold().finalize()


def test_init_fn_takes_scaffold_and_session() -> None:  # A48
    calls: list[Any] = []
    scaffold = Scaffold(init_fn=lambda *args: calls.append(args))
    assert scaffold.init_fn is not None
    scaffold.init_fn("session")
    assert calls == [(scaffold, "session")]
    assert Scaffold().init_fn is None


def test_copying() -> None:  # A48
    calls: list[Any] = []
    original = Scaffold(
        init_op=1,
        init_feed_dict={"a": 1},
        init_fn=lambda *args: calls.append(args),
        ready_op=2,
        ready_for_local_init_op=3,
        local_init_op=4,
        local_init_feed_dict={"b": 2},
        summary_op=5,
        saver=6,
    )
    copy = Scaffold(copy_from_scaffold=original, saver=7)
    assert [getattr(copy, p) for p in (*PIECES, "summary_op")] == [1, 2, 3, 4, 7, 5]
    assert (copy.init_feed_dict, copy.local_init_feed_dict) == ({"a": 1}, {"b": 2})
    assert copy.init_fn is not None
    copy.init_fn("session")
    assert calls == [(copy, "session")]
    with pytest.raises(TypeError, match="must be a Scaffold, got dict"):
        Scaffold(copy_from_scaffold={})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reported", "missing"),
    [
        (None, []),
        ([], []),
        ("", []),
        (np.array([], dtype=object), []),
        (np.array([b"weight", b"bias"]), ["weight", "bias"]),
        ("weight", ["weight"]),
        (["weight", "bias"], ["weight", "bias"]),
    ],
)
def test_readiness_is_the_absence_of_missing_names(reported: Any, missing: list[str]) -> None:  # A46
    assert missing_names(None, lambda session: reported) == missing


def test_pieces_are_functions_or_fetches() -> None:  # A46
    session = CounterSession()
    assert run_piece(session, lambda given: given is session) is True
    assert run_piece(session, {"result": "y"}, {"x": 4}) == {"result": 8}
