"""What a program can see of being watched: nothing, whichever way it looks."""

from __future__ import annotations

import sys

import pytest

from tensortap.commands.run_answer import Answerer
from tensortap.launch.ranks import Voice
from tensortap.records import RunInfo
from tensortap.store import SessionStore
from tests.patience import finished
from tests.server.tools import pill, summary

LOOKING = """
import collections, sys, torch, weakref
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Functions(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


@torch.jit.script
def scripted(x):
    return torch.sigmoid(x) * x + 0.1


class Activation(nn.Module):
    def forward(self, x):
        # Scripted ops go past modes of functions; in a dispatch mode they become calls that these see.
        return x.relu() if "dispatch" in sys.argv else scripted(x)


def trained(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), Activation())
    optimizer = torch.optim.Adam(model.parameters())
    for i in range(4):
        with mode:  # a run begins in it
            loss = model(torch.ones(2, 3) + i).square().mean()
            if i == 2:
                optimizer.zero_grad()
        loss.backward()
        with mode:
            optimizer.step()
    print(sorted(mode.seen.items()))


def local_names():
    first = nn.Linear(2, 2)
    big = torch.ones(1000)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    second = nn.Linear(2, 2)
    second(first(torch.ones(2, 2))).sum().backward()
    optimizer.step()
    alive = weakref.ref(big)
    del big
    print(alive() is None, list(locals()))


def traced():
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.ReLU()).eval()
    model(torch.ones(2, 2, 9))
    print(torch.jit.trace(model, torch.ones(2, 2, 9)).inlined_graph)


trained(Functions())
trained(Ops())
traced()
local_names()
"""


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_to_build():
    """A first run says that it compiles."""
    from tensortap.engines.torch.observer.build import ensure_built

    ensure_built()


@pytest.mark.parametrize("interceptor", ["native", "dispatch"])
def test_modes_variables_and_traces_are_the_programs_own(interceptor, tmp_path):
    path = tmp_path / "looking.py"
    path.write_text(LOOKING)
    plain = finished([sys.executable, path, interceptor])
    run = [sys.executable, "-m", "tensortap", "run", "-q", "-o", tmp_path / "records"]
    done = finished([*run, "--interceptor", interceptor, path, interceptor])
    assert done.stdout == plain.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_that_goes_on_is_not_judged(tmp_path, capsys):
    answerer = Answerer(tmp_path, "train.py", ["train.py"], Voice(tmp_path, None))
    with SessionStore(tmp_path) as store:
        store.new_run(RunInfo(index=0, global_step=0, timestamp=17)).finish({}, {})
        growing = store.new_run(RunInfo(index=1, global_step=1, timestamp=18))
        growing.write(summary("mask", pill(neg_inf=3)))
        assert not answerer.judge(tmp_path / "run_17_0")
        growing.finish({}, {})
        assert answerer.judge(growing.path)
    assert capsys.readouterr().err.count("✗ first bad value") == 1
