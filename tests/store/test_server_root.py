"""The root of a server, and what a server needs of the store besides."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.reader import SessionDir
from tensortap.records import Record, RunInfo
from tensortap.store import SessionStore, device_files
from tensortap.store.server_root import job_directory, list_jobs, read_job_facts, write_job_facts
from tensortap.store.session import remove_run, run_size
from tests.store.sample import CPU


@given(st.text(min_size=1), st.text(min_size=1))
def test_every_job_has_a_directory_of_its_own_inside_the_root(tmp_path_factory, first, second):
    root = tmp_path_factory.getbasetemp()
    directories = [job_directory(root, name) for name in (first, second)]
    for directory in directories:
        assert directory.parent == root
        assert directory.name.strip(".") == directory.name != ""
        assert directory.name.isascii()
        assert len(directory.name) <= 64
    assert (directories[0] == directories[1]) == (first == second)


def test_jobs_are_found_by_their_real_names(tmp_path):
    for name in ("plain", "with/path", "ünïcode"):
        SessionStore(job_directory(tmp_path, name)).close()
        write_job_facts(job_directory(tmp_path, name), {"job": name})
    (tmp_path / "no session").mkdir()
    # A file that claims to be another job is not believed.
    liar = job_directory(tmp_path, "liar")
    SessionStore(liar).close()
    write_job_facts(liar, {"job": "../../etc"})
    assert set(list_jobs(tmp_path)) == {"plain", "with/path", "ünïcode"}
    (liar / "job.json").write_text("{")
    assert read_job_facts(liar) == {}
    assert set(list_jobs(tmp_path)) == {"plain", "with/path", "ünïcode", "liar"}


def pill_record(timestamp):
    return Record("w", 0, "DebugNumericSummary", CPU, timestamp, "float64", (14,), np.zeros(14).tobytes())


def test_runs_refer_to_content_that_was_stored_before(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(RunInfo(0, 0, 17)) as run:
        source = store.put("sources", b"x = 1")
        run.refer(sources={"train.py": source})
        run.refer(graphs={CPU: store.put("graphs", b"")})
        run.finish({}, {})
        assert store.get("sources", source) == b"x = 1"
    described = json.loads((run.path / "run.json").read_text())
    assert described["sources"] == {"train.py": source}
    assert list(described["graphs"]) == [CPU]


def test_a_run_can_be_measured_and_removed(tmp_path):
    with SessionStore(tmp_path) as store, store.new_run(RunInfo(0, 0, 17)) as run:
        run.write(pill_record(18))
        run.finish({}, {})
    assert run_size(run.path) == sum(path.stat().st_size for path in run.path.iterdir()) > 0
    remove_run(run.path)
    remove_run(run.path)
    assert run_size(run.path) == 0
    session = SessionDir(tmp_path)
    assert session.runs == []
    assert len(session.history("w:0")) == 1  # what is known of its health stays


@pytest.mark.parametrize("limit", [5, 10])
def test_a_run_with_more_pills_than_memory_may_hold_has_them_in_its_index(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(device_files, "MAX_KEPT_PILLS", limit)
    with SessionStore(tmp_path) as store, store.new_run(RunInfo(0, 0, 17)) as run:
        for place in range(10):
            run.write(pill_record(100 + place))
        run.finish({}, {})
    session = SessionDir(tmp_path)
    assert len(session.history("w:0")) == 10
    assert session.notices == []
