"""Who may write into a session root: one session, or the ranks of one launch."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tensortap.debug.root import Launch, claim_session_root
from tensortap.reader.session_dir import SessionDir
from tests.patience import patient

RANKS = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
VARIABLES = [*RANKS, "RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TENSORTAP_SESSION_ID"]


@pytest.fixture
def as_rank(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def become(rank, **others):
        for name, value in {**RANKS, "RANK": str(rank), **others}.items():
            monkeypatch.setenv(name, value)

    return become


def test_ranks_of_one_launch_share_a_root(tmp_path, as_rank):
    for rank in range(2):
        as_rank(rank)
        claim_session_root(tmp_path / "root")


def test_the_same_rank_does_not_come_twice(tmp_path, as_rank):
    as_rank(0)
    claim_session_root(tmp_path / "root")
    with pytest.raises(ValueError, match="rank 0 of this launch"):
        claim_session_root(tmp_path / "root")


def test_a_rank_that_was_restarted_comes_back(tmp_path, as_rank):
    as_rank(0)
    claim_session_root(tmp_path / "root")
    as_rank(0, TORCHELASTIC_RESTART_COUNT="1")
    claim_session_root(tmp_path / "root")


def test_another_launch_is_refused(tmp_path, as_rank):
    as_rank(0)
    claim_session_root(tmp_path / "root")
    as_rank(1, MASTER_PORT="29501")
    with pytest.raises(ValueError, match="another launch"):
        claim_session_root(tmp_path / "root")


def test_a_session_of_one_process_is_refused_in_the_root_of_a_launch(tmp_path, as_rank, monkeypatch):
    as_rank(0)
    claim_session_root(tmp_path / "root")
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ValueError, match="not empty"):
        claim_session_root(tmp_path / "root")


def test_ranks_do_not_excuse_a_directory_of_somebody_else(tmp_path, as_rank):
    (tmp_path / "thesis.tex").touch()
    as_rank(1)
    with pytest.raises(ValueError, match="not empty"):
        claim_session_root(tmp_path)


def test_a_launch_may_be_named(as_rank, monkeypatch):
    monkeypatch.setenv("TENSORTAP_SESSION_ID", "experiment 7")
    assert Launch.of(os.environ) == Launch("experiment 7", 0, 0)


def test_two_ranks_dump_into_one_root_at_the_same_time(tmp_path):
    program = textwrap.dedent("""
        import sys, torch, tensortap as tt
        from tensortap.debug.hooks import DumpingDebugHook
        from tensortap.watch.options import WatchOptions
        hook = DumpingDebugHook(sys.argv[1], lambda *_: WatchOptions("DebugNumericSummary"))
        with tt.MonitoredSession(tt.torch.Session(lambda x: {"y": x * 2}), hooks=[hook]) as session:
            for _ in range(20):
                session.run("y", {"x": torch.ones(3)})
    """)
    root = tmp_path / "root"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(root)], env={**os.environ, **RANKS, "RANK": str(rank)}
        )
        for rank in range(2)
    ]
    assert [rank.wait(patient(120)) for rank in ranks] == [0, 0]
    session = SessionDir(root)
    assert len(session) == 40
    assert session.tasks() == [0, 1] or session.tasks == [0, 1]
