"""The Python in README and docs runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.server import DebugServer

ROOT = Path(__file__).parent.parent


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        return self.out(x.softmax(-1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.attn(x))


def blocks(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


@pytest.fixture
def names():
    """What the examples take for granted: a model, its optimizer, data, a step."""
    torch.manual_seed(0)
    model, loss_fn = Model(), nn.CrossEntropyLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 1])

    def step(x, y):
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return {"loss": loss}

    sched = torch.optim.lr_scheduler.StepLR(opt, 10)
    return {
        "tt": tt,
        "model": model,
        "loss_fn": loss_fn,
        "opt": opt,
        "x": x,
        "y": y,
        "step": step,
        "loader": [(x, y)] * 2,
        "sched": sched,
        "feeds": {"x": x, "y": y},
        "hooks": [],
    }


def test_readme(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop, session = blocks("README.md")
    exec(loop.replace("...", "loss_fn(model(x), y).backward()"), names)
    assert len(list(tmp_path.glob("dumps/run_*"))) == len(names["loader"])
    exec(session.replace("last_step=1000", "last_step=2"), names)
    assert names["probs"].shape == (3, 4)
    assert names["grad"].shape == (4, 4)


def test_hooks_page(names):
    (example,) = blocks("docs/hooks.md")
    exec(example, names)
    with tt.MonitoredSession(tt.torch.Session(names["step"]), hooks=[names["PrintGradient"]()]) as session:
        session.run(None, names["feeds"])
        assert not session.should_stop()


def test_torch_page(names, capsys):
    sessions, everything = blocks("docs/torch.md")[:2]
    exec(sessions, names)
    exec(everything, names)
    assert "gradients/model/fc/weight" in capsys.readouterr().out
    assert any(node.name == "model/fc/addmm" for node in names["metadata"].nodes)


def test_dumping_page(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writing, budget, reading = blocks("docs/dumping.md")
    exec(writing, names)
    exec(budget, names)
    # The page reads another tensor than the one its example watches.
    hook = tt.DumpingDebugHook("all", watch_fn=lambda fetches, feeds: tt.WatchOptions("DebugNumericSummary"))
    with tt.MonitoredSession(tt.torch.Session(names["step"]), hooks=[hook]) as session:
        session.run(None, names["feeds"])
    exec(reading.replace('"dumps"', '"all"'), names)
    assert len(names["history"]) == 1
    assert names["first_bad"] == []


def test_streaming_page(names, tmp_path):
    hook, options = blocks("docs/stream.md")
    with DebugServer(tmp_path, http_port=None) as server:
        exec(hook.replace("localhost:6064", server.address), names)
        assert len(list(server.root.glob("*/run_*"))) == 1
    exec(options, names)


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
