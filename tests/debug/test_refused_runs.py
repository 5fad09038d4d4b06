"""Runs that never began leave nothing, and limits of the wrong kind are refused at once."""

from __future__ import annotations

import json

import pytest
import torch

import tensortap as tt
from tensortap.commands import main


def step(x):
    return {"y": x + 1}


def test_a_run_refused_before_it_began_leaves_no_directory(tmp_path):
    hook = tt.DumpingDebugHook(
        tmp_path / "dumps", watch_fn=lambda fetches, feeds: tt.WatchOptions("DebugNothing")
    )
    with pytest.raises(tt.errors.InvalidArgumentError, match="DebugNothing"):
        with tt.MonitoredSession(tt.torch.Session(step), hooks=[hook]) as session:
            session.run(None, {"x": torch.ones(1)})
    assert list((tmp_path / "dumps").glob("run_*")) == []


@pytest.mark.parametrize(
    ("limits", "words"), [({"retention": "inf_or_nan"}, "Retention"), ({"budget": 1000}, "Budget")]
)
def test_limits_of_the_wrong_kind(tmp_path, limits, words):
    with pytest.raises(TypeError, match=words):
        tt.DumpingDebugHook(tmp_path / "dumps", **limits)
    with pytest.raises(TypeError, match=words):
        tt.DumpingDebugWrapperSession(tt.torch.Session(step), tmp_path / "dumps", **limits)


def test_dropped_records_are_counted_once(tmp_path, capsys):
    hook = tt.DumpingDebugHook(tmp_path / "dumps", budget=tt.Budget(bytes_per_run=100))
    with tt.MonitoredSession(tt.torch.Session(step), hooks=[hook]) as session:
        session.run(None, {"x": torch.ones(1000)})
    assert main(["ls", str(tmp_path / "dumps"), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["tensors"], run["dropped"]) == (0, 2)
