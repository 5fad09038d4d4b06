"""Looks beside a program: updates are told at once, runs are read when there is time, and nobody waits for it."""

from __future__ import annotations

import pytest

import tensortap as tt
from tensortap.analyze.checks import live
from tensortap.analyze.checks.live import LiveChecks
from tensortap.records import Event, Frame, Group, ParameterUpdate, Update
from tensortap.store.layout import updates_path
from tensortap.store.updates import GrowingUpdates, UpdateLog, read_updates

SOURCE = Frame("train.py", 7, "<module>")


@pytest.fixture
def root(tmp_path):
    """Probabilities given to a cross entropy, which runs show, and a learning rate of zero, which updates show."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(dim=1))
    loss_fn = torch.nn.CrossEntropyLoss()

    def step(x, y):
        loss = loss_fn(model(x), y)
        loss.backward()
        return {"loss": loss}

    plain = tt.torch.Session(step, modules={"model": model})
    with tt.DumpingDebugWrapperSession(
        plain, tmp_path, watch_fn=lambda fetches, feeds: tt.WatchOptions("DebugNumericSummary")
    ) as watched:
        for _ in range(4):
            watched.run("loss", {"x": torch.randn(5, 4), "y": torch.randint(3, (5,))})
    log = UpdateLog(tmp_path)
    for count in range(4):
        log.add(
            Update(
                count,
                "SGD",
                count,
                SOURCE,
                variable="optimizer",
                events=(Event("backward"), Event("step", "SGD", SOURCE)),
                groups=(Group(0.0, ("model/0/weight",)),),
                parameters=(ParameterUpdate("model/0/weight", (3, 4), "float32", gradient=1.0, nonzero=1.0),),
            )
        )
    log.close()
    return tmp_path


def test_a_glance_tells_both_once_and_rests_then_for_longer_than_it_took(root, monkeypatch):
    monkeypatch.setattr(live, "SHARE", 1e-6)
    monkeypatch.setattr(live, "SECS_OF_A_BYTE", 0.0)
    told = []
    checks = LiveChecks(root, (), lambda finding: told.append(finding.kind))
    assert {each.kind for each in checks.glance()} >= {"softmax-twice", "learning-rate-zero"}
    assert sorted(told) == ["learning-rate-zero", "softmax-twice"]
    assert checks.glance() is None  # updates only
    assert len(told) == 2
    assert {each.kind for each in checks.look()} >= {"softmax-twice", "learning-rate-zero"}
    assert len(told) == 2


def test_runs_that_take_long_to_read_are_not_read_in_the_first_moments_of_a_program(root, monkeypatch):
    monkeypatch.setattr(live, "SECS_OF_A_BYTE", 1.0)
    told = []
    checks = LiveChecks(root, (), lambda finding: told.append(finding.kind))
    assert checks.glance() is None
    assert told == ["learning-rate-zero"]
    assert {each.kind for each in checks.look()} >= {"softmax-twice", "learning-rate-zero"}


def test_updates_are_read_as_they_come(root):
    growing = GrowingUpdates(root)
    before = growing.of(0)
    log = UpdateLog(root)
    log.add(Update(99, "SGD", 99))
    log.close()
    path = updates_path(root, 0)
    path.write_bytes(path.read_bytes() + b'{"step": 100, "opt')
    assert growing.of(0) == [*before, Update(99, "SGD", 99)] == read_updates(root, 0)
    path.write_bytes(path.read_bytes() + b'imizer": "SGD", "count": 100}')
    assert growing.of(0) == [*before, Update(99, "SGD", 99), Update(100, "SGD", 100)] == read_updates(root, 0)
    path.write_bytes(b"")
    assert growing.of(0) == []


def test_a_glance_is_given_up_when_the_program_ends_but_not_what_updates_show(root):
    told = []
    checks = LiveChecks(root, (), lambda finding: told.append(finding.kind))
    checks.ends.set()
    assert checks.glance() is None
    assert told == ["learning-rate-zero"]
    assert {each.kind for each in checks.look()} >= {"softmax-twice", "learning-rate-zero"}
    assert not checks.faults
