"""What is kept of a program does not grow with the size of its runs."""

from __future__ import annotations

import pytest

from tensortap.launch import samples, watch
from tensortap.launch.samples import RECORDS, Samples
from tensortap.launch.watch import ScriptOptions, ScriptWatch
from tensortap.reader import SessionDir
from tensortap.sink.retention import is_sample
from tensortap.watch.options import WatchOptions


def kept(size, runs):
    chosen = Samples()
    chosen.size = size
    return [index for index in range(runs) if chosen.wants(index)]


def test_small_runs_are_kept_as_they_come():
    assert kept(RECORDS, 1000) == [index for index in range(1000) if is_sample(index)]


@pytest.mark.parametrize("times", [2, 5, 40])
def test_of_large_runs_the_first_and_then_so_few_that_they_take_no_more_than_small_ones(times):
    chosen = kept(times * RECORDS, 100_000)
    assert chosen[:4] == [0, 1, 2, 3]
    assert len(chosen) - 4 == (len(kept(RECORDS, 100_000)) - 4) // times


def trained(root, planted=None):
    """Train for forty steps; the runs that are kept of them."""
    torch = pytest.importorskip("torch")
    from tensortap.engines.torch.follow import follow

    script = ScriptWatch(ScriptOptions(root, WatchOptions("DebugNumericSummary"), last=10))
    follower = follow(script)
    try:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(40):
            loss = model(torch.ones(2, 3)).square().mean() * (torch.nan if step == planted else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        follower.end()
        script.close()
    return sorted(run.index for run in SessionDir(root).runs), script


def test_a_program_of_large_runs_keeps_few_of_them_and_says_so(tmp_path, monkeypatch):
    assert trained(tmp_path / "small")[0] == [*range(11), 20, *range(29, 40)]
    records = SessionDir(tmp_path / "small").run(5).size
    monkeypatch.setattr(samples, "RECORDS", records / 3)
    monkeypatch.setattr(watch, "LAST_RECORDS", 5 * records)
    found, script = trained(tmp_path / "large")
    assert found == [0, 1, 2, 3, 6, 9, 30, *range(35, 40)]
    assert script.samples.left_out


def test_the_runs_before_a_bad_one_are_kept_however_large(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "RECORDS", 1)
    monkeypatch.setattr(watch, "LAST_RECORDS", 1)
    found, _ = trained(tmp_path / "runs", planted=25)
    assert set(found) >= {*range(15, 26)}
