"""Which runs of a session are looked at."""

from __future__ import annotations

import pytest

import tensortap as tt
from tensortap.analyze.checks.evidence import FEW_RUNS, evidence_of
from tensortap.reader import SessionDir


@pytest.fixture
def session(tmp_path):
    """Twelve kept runs."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    plain = tt.torch.Session(lambda x: {"y": model(x)}, modules={"model": model})
    with tt.DumpingDebugWrapperSession(plain, tmp_path) as watched:
        for _ in range(12):
            watched.run("y", {"x": torch.ones(1, 2)})
    return SessionDir(tmp_path)


def indices(session, **options):
    (found,) = evidence_of(session, **options)
    return [run.info.index for run in found.runs]


def test_all_runs_are_looked_at_where_they_are_small(session):
    assert indices(session) == list(range(12))


def test_of_large_runs_the_first_and_the_last_are_looked_at_in_their_order(session):
    assert indices(session, enough_tensors=1) == [0, 1, 11]
    assert len(indices(session, enough_tensors=1)) == FEW_RUNS
