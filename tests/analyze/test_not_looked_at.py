"""What could not be looked at is neither good nor bad, from the record to the answer."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.analyze.facts import RunFacts, facts_of_dump
from tensortap.analyze.first_bad import search
from tensortap.analyze.health import Health
from tensortap.analyze.session import search_session
from tensortap.commands import main
from tensortap.reader import SessionDir
from tensortap.records import Node, RunInfo

UNREAD = Health.of_pill(
    np.array([0, 0, 0, 0, 0, 0, 0, 0, np.inf, -np.inf, np.nan, np.nan, 1, 1, 3.0]).tobytes()
)
INFINITE = Health.of_value(np.array([np.inf, 1.0]))


def report(nodes, healths):
    return search(RunFacts(RunInfo(0, 0, 1), {node.name: node for node in nodes}, healths))


def test_the_health_of_what_was_not_looked_at():
    assert str(UNREAD) == UNREAD.as_dict()["status"] == "not looked at"
    assert not UNREAD.is_bad
    assert str(Health.of_value(np.zeros((0, 3)))) == "empty", "which has been looked at"


def test_an_input_that_was_not_looked_at_is_not_called_good():
    found = report(
        [Node("w", "Variable"), Node("add", "aten::add", inputs=("w:0",))], {"w:0": UNREAD, "add:0": INFINITE}
    )
    finding = found.first_bad
    assert finding is not None
    assert [(str(each), each.status) for each in finding.inputs] == [("not looked at", "unknown")]
    assert not finding.is_certain
    assert finding.cause.kind == "input-not-recorded"
    assert "w:0 was not looked at" in finding.cause.sentence
    assert (found.looked_at, found.unread) == (1, ("w:0",))


def test_data_is_not_accused_of_what_an_unseen_op_may_have_made():
    healths = {"odd:0": UNREAD, "relu/const:0": INFINITE, "relu:0": INFINITE}
    nodes = [
        Node("odd", "custom::odd"),
        Node("relu/const", "Const"),
        Node("relu", "aten::relu", inputs=("relu/const:0",)),
    ]
    cause = report(nodes, healths).first_bad.cause
    assert cause.kind == "not-looked-at"
    assert "odd:0" in cause.sentence
    assert "batch" not in cause.advice
    seen = {**healths, "odd:0": Health.of_value(np.ones(3))}
    assert report(nodes, seen).first_bad.cause.kind == "bad-input"


def test_integers_cannot_be_bad():
    integers = UNREAD._replace(dtype_number=9.0)
    assert report([Node("x", "Placeholder")], {"x:0": integers}).unread == ()


@pytest.fixture
def dumped(tmp_path):
    """A healthy session in which something could not be looked at."""

    def step(x):
        return {"y": x * 2, "odd": torch.ones(3, device="meta") + 1}

    watch = tt.WatchOptions(["DebugNumericSummary"])
    session = tt.torch.Session(step)
    with tt.DumpingDebugWrapperSession(
        session, tmp_path / "d", watch_fn=lambda fetches, feeds: watch
    ) as watched:
        watched.run(None, {"x": torch.ones(2)})
    return tmp_path / "d"


def test_every_command_says_so(dumped, capsys):
    facts = facts_of_dump(SessionDir(dumped).runs[0].open())
    assert sorted(facts.unread) == ["add:0", "ones:0"]
    assert search_session(SessionDir(dumped)).unread == ("add:0", "ones:0")

    def said(*arguments):
        code = main(list(map(str, arguments)))
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    code, text = said("why", dumped)
    assert code == 3  # not all was seen
    assert "healthy" not in text
    assert "2 tensors were not looked at (add:0, ones:0)" in " ".join(text.split())
    assert "not looked at" in said("ls", dumped, "--run", 0)[1]
    assert "2 tensors were not looked at" in said("health", dumped)[1]
    assert said("health", dumped, "--run", 0)[1].count("not looked at") == 2
    assert "not looked at" in said("node", dumped, "add", "--run", 0)[1]
    rows = json.loads(said("ls", dumped, "--run", 0, "--json")[1])["tensors"]
    assert {row["tensor"]: (row["bad"], row["health"]) for row in rows}["add:0"] == (None, "not looked at")
    assert json.loads(said("why", dumped, "--json")[1])["not_looked_at"] == ["add:0", "ones:0"]
