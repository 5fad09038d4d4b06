"""All runs of a session: order, history, damage, several tasks, tfdbg runs."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from tensortap.reader import PILL_COLUMNS, DumpFormatError, SessionDir
from tensortap.records import RunInfo
from tensortap.store import SessionStore, export_tfdbg
from tests.store.sample import START, nodes, pill, record


def session(root, runs=5, finish=lambda index: True):
    with SessionStore(root) as store:
        for index in range(runs):
            with store.new_run(RunInfo(index, 10 * index, START + index)) as run:
                run.write(pill("fc", nan=index, after=index))
                run.write(record("fc", np.full(2, index, np.float32), after=index))
                if finish(index):
                    run.finish(nodes(), {})
    return SessionDir(root)


def test_runs_in_order(tmp_path):
    found = session(tmp_path, 12)
    assert [run.index for run in found] == list(range(12))
    assert found.run(4, validate=False).core_metadata.global_step == 40
    assert found.run(-1, validate=False).core_metadata.session_run_index == 11
    with pytest.raises(LookupError, match="0 to 11"):
        found.run(99)
    with pytest.raises(OSError, match="does not exist"):
        SessionDir(tmp_path / "nowhere")


def test_a_history(tmp_path):
    history = session(tmp_path).history("fc:0")
    assert history["run"].tolist() == [0, 1, 2, 3, 4]
    assert history["step"].tolist() == [0, 10, 20, 30, 40]
    assert history["nan"].tolist() == [0, 1, 2, 3, 4]
    assert set(PILL_COLUMNS) <= set(history.dtype.names)
    assert len(session(tmp_path / "b").history("nowhere:0")) == 0


def test_a_long_history_is_regrouped(tmp_path):
    found = session(tmp_path, 200)
    assert found.history("fc:0")["nan"].tolist() == list(range(200))


def test_runs_that_never_finished_are_part_of_the_history(tmp_path):
    found = session(tmp_path, 6, finish=lambda index: index % 2)
    assert found.history("fc:0")["nan"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found.tensors() == ["fc:0"]


def test_other_debug_ops_are_read_run_by_run(tmp_path):
    history = session(tmp_path).history("fc:0", "DebugIdentity")
    assert history["value"].tolist() == [[n, n] for n in range(5)]
    assert history["step"].tolist() == [0, 10, 20, 30, 40]


def test_tensors_by_debug_op(tmp_path):
    found = session(tmp_path)
    assert found.tensors() == found.tensors("DebugIdentity") == ["fc:0"]
    assert found.tensors("DebugHash") == []


def test_broken_runs_do_not_hide_the_others(tmp_path):
    session(tmp_path, 5, finish=lambda index: False)
    (tmp_path / f"run_{START + 1}_1" / "run.json").write_bytes(b"\0\xff")
    facts = json.loads((tmp_path / f"run_{START + 2}_2" / "run.json").read_text())
    (tmp_path / f"run_{START + 2}_2" / "run.json").write_text(json.dumps({**facts, "version": 99}))
    for index in (tmp_path / f"run_{START + 3}_3").glob("*.index"):
        index.write_bytes(b"junk")
    (tmp_path / "run_7_7").write_text("a file")
    (tmp_path / "run_x_7").mkdir()
    found = SessionDir(tmp_path)
    assert len(found) == 5
    assert found.history("fc:0")["nan"].tolist() == [0, 1, 4]
    assert any("newer than this reader" in notice for notice in found.notices)
    assert any("run.json cannot be read" in notice for notice in found.run(1).notices)
    with pytest.raises(DumpFormatError, match="Upgrade"):
        found.run(2)


@pytest.mark.parametrize("damage", [b"", b"junk" * 1000, None])
def test_a_broken_history_is_replaced_by_the_runs(tmp_path, damage):
    found = session(tmp_path)
    file = tmp_path / "health" / "task_0.sqlite3"
    content = file.read_bytes()
    file.write_bytes(content[:4096] + bytes(len(content) - 4096) if damage is None else damage)
    assert found.history("fc:0")["nan"].tolist() == [0, 1, 2, 3, 4]
    assert found.tensors() == ["fc:0"]
    assert found.notices


def test_a_newer_session_is_refused(tmp_path):
    session(tmp_path)
    (tmp_path / "tensortap.json").write_text('{"format": "tensortap-session", "version": 99}')
    with pytest.raises(DumpFormatError, match="newer"):
        SessionDir(tmp_path)
    with pytest.raises(DumpFormatError, match="newer"):
        SessionStore(tmp_path)


def test_growth(tmp_path):
    found = session(tmp_path, 2)
    assert not found.refresh()
    with SessionStore(tmp_path) as store, store.new_run(RunInfo(2, 20, START + 2)) as run:
        run.write(pill("fc", nan=9, after=9))
        assert found.refresh()
        assert found.history("fc:0")["nan"].tolist() == [0, 1, 9]


def test_a_root_of_tfdbg_runs(tmp_path):
    found = session(tmp_path / "packed", 3)
    for run in found:
        export_tfdbg(run.path, tmp_path / "tfdbg" / run.name)
    other = SessionDir(tmp_path / "tfdbg")
    assert other.history("fc:0")["nan"].tolist() == [0, 1, 2]
    assert other.run(1, validate=False).size == 2
    shutil.rmtree(tmp_path / "tfdbg" / found.runs[0].name)
    assert other.refresh()
    assert other.history("fc:0", "DebugIdentity")["value"].tolist() == [[1, 1], [2, 2]]
