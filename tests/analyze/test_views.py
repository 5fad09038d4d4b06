"""What commands and the HTTP interface both show is computed once: records of a run, one value, histories."""

from __future__ import annotations

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tensortap.analyze.history import history_of
from tensortap.analyze.listing import list_records
from tensortap.analyze.values import NoSuchOp, NoSuchTensor, find_record, find_value, storable
from tensortap.commands import main
from tensortap.errors import NotThereError, UsageError
from tensortap.reader import SessionDir
from tensortap.report.plain import plain
from tensortap.server import DebugServer
from tensortap.store import SessionStore
from tests.server.tools import get
from tests.store.sample import GPU, INFO, START, pill, record

GRID = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A session under the root of a server, so that both can be asked about it."""
    root = tmp_path_factory.mktemp("root")
    store = SessionStore(root / "default")
    for index in range(3):
        writer = store.new_run(replace(INFO, index=index, timestamp=START + index))
        for each in (
            record("x", GRID + index, after=index),
            record("x", GRID * 2, after=index + 1),
            record("x", [float(index)], device=GPU, after=index + 2),
            record("x", [0], op="DebugNanCount", after=index + 3),
            pill("w", nan=index, after=index + 4),
            record("bad", [1.0, np.inf], after=index + 5),
        ):
            writer.write(each)
        writer.finish({}, {"written": 6})
    store.close()
    return root


@pytest.fixture(scope="module")
def session(root):
    return SessionDir(root / "default")


@pytest.fixture
def run(session):
    return session.run(-1, validate=False)


def test_one_value_is_found_by_name_op_execution_and_device(run):
    assert find_value(run, "x").executions == 3
    assert find_value(run, "x:0[1, ::2]", execution=1).value().tolist() == [8.0, 12.0]
    assert find_value(run, "x", "NanCount").value().tolist() == [0], "`Debug` may be left out"
    assert find_record(run, "x:0", device=GPU).value().tolist() == [2.0]
    with pytest.raises(NoSuchTensor, match="no tensor 'y:0'") as missing:
        find_value(run, "y")
    assert list(missing.value.names) == ["bad:0", "w:0", "x:0"]
    with pytest.raises(NoSuchOp, match="it has DebugIdentity, DebugNanCount"):
        find_value(run, "x", "DebugHash")
    with pytest.raises(NotThereError, match="executed 3 times; there is no execution -4"):
        find_value(run, "x", execution=-4)
    with pytest.raises(UsageError, match=r"its shape is \[3, 4\]"):
        find_value(run, "x[5]", execution=0).value()


def test_records_say_what_is_known_of_them_at_a_glance(run):
    rows = {(row.datum.tensor_name, row.datum.debug_op): row for row in list_records(run)}
    assert rows["bad:0", "DebugIdentity"].is_bad() is True
    assert rows["bad:0", "DebugIdentity"].is_bad(reads_values=False) is None
    assert rows["w:0", "DebugNumericSummary"].health_words() == "2 nan"
    assert rows["x:0", "DebugNanCount"].health_words() == "good"
    assert [row.datum.tensor_name for row in list_records(run, lambda datum: "w" in datum.node_name)] == [
        "w:0"
    ]


def test_a_history_comes_from_pills_or_from_values(session):
    assert history_of(session, "w:0")["nan"].tolist() == [0, 1, 2]
    assert history_of(session, "w:0", last=1)["run"].tolist() == [2]
    assert not len(history_of(session, "w:0", task=7))
    values = history_of(session, "bad:0")
    assert values["pos_inf"].tolist() == [1, 1, 1]
    assert values["max"].tolist() == [1, 1, 1]
    assert not len(history_of(session, "bad:0", reads_values=False))


def test_values_as_json_and_files_can_hold_them():
    assert plain([np.float32("inf"), np.complex64(1j), np.array(3), (b"a", None)]) == [
        "inf", "1j", 3, ["a", None]
    ]  # fmt: skip
    assert json.dumps(plain({1: np.array([1, 2])})) == '{"1": "[1 2]"}'
    assert storable(np.ones(1, ml_dtypes.bfloat16)).dtype == np.float32
    assert storable(np.array([object()])) is None


def test_both_ways_to_ask_say_the_same(root, capsys):
    directory = str(root / "default")

    def command(*arguments):
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    with DebugServer(root) as server:
        path = "/api/jobs/default"
        shown = command("show", directory, "x[0, 1:3]", "--run", "-1", "-e", "0")
        asked = get(server, f"{path}/runs/last/value?tensor=x[0,1:3]&execution=0")
        assert (shown["value"], shown["executions"]) == (asked["value"], asked["executions"])
        listed = command("ls", directory, "--run", "-1", "--bad")["tensors"]
        found = get(server, f"{path}/runs/last/tensors?bad=1")["tensors"]
        assert sorted(each["tensor"] for each in listed) == sorted(each["tensor"] for each in found)
        history = command("history", directory, "w")["runs"]
        columns = get(server, f"{path}/health?tensor=w:0")["columns"]
        assert [each["mean"] for each in history] == columns["mean"]
        assert [each["run"] for each in history] == columns["run"]
