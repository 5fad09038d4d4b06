"""What `docs/profile.md` says of timelines runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

import tensortap as tt
from tensortap.commands import main
from tensortap.store.trace_file import read_trace
from tests.profile.trace_rules import check_trace

PAGE = Path(__file__).parents[2] / "docs" / "profile.md"


def test_timelines_of_your_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    names = {"tt": tt, "step": step, "model": model, "feeds": {"x": torch.randn(3, 4)}}
    (block,) = (
        text
        for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "Timeline(" in text
    )
    exec(block, names)
    assert int(capsys.readouterr().out.split()[0]) > 0
    trace = read_trace(tmp_path / "timeline-1.json.gz")
    check_trace({"traceEvents": trace.events}, nested=True)
    told = [(event["cat"], event["name"]) for event in trace.events if event["ph"] == "X"]
    phases = [("Phase", "forward"), ("Phase", "backward"), ("Phase", "optimizer"), ("Module", "model/2")]
    assert set(phases) <= set(told)
    assert ("Op", "aten::addmm") in told
    assert main(["profile", ".", "--by", "line"]) == 0
    assert f"{Path(__file__).name}:" in capsys.readouterr().out
