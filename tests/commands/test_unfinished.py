"""Ranks that are killed or hang: which, at which operation and line, and an exit code that shows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from tensortap.commands import main
from tensortap.reader import SessionDir, coverage
from tensortap.store.processes import read_processes

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
PATIENCE_SECS = 120

TRAIN = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def step():
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()

def waits():
    time.sleep(1000)

for number in range(100):
    if number == 14 and dist.get_rank() == 1:
        if sys.argv[1] == "die":
            time.sleep(1)  # the other one is waiting by then
            os.kill(os.getpid(), signal.SIGKILL)
        waits()
    step()
"""


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Starts the ranks; whatever is left of them in the end is killed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    started = []

    def start(fate):
        command = [*TORCHRUN, "-m", "tensortap", "run", "-o", "dumps", "train.py", fate]
        with open("output", "w") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        started.append(process)
        return process

    yield start
    for process in started:
        for each in read_processes(tmp_path / "dumps")[0]:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def eventually(condition):
    deadline = time.monotonic() + PATIENCE_SECS
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to this"
        time.sleep(0.1)
    return found


def flat(text):
    return " ".join(text.split())


def test_a_rank_that_was_killed_is_named_with_the_place_where_it_was(launched, capsys):
    launched("die").wait(PATIENCE_SECS)
    assert main(["why", "dumps"]) == 3
    shown = flat(capsys.readouterr().out)
    assert shown.startswith("✗ not finished no bad value in what was recorded")
    assert "healthy" not in shown
    assert "Rank 1 did not finish: it was killed" in shown
    first, _, second = shown.partition("Rank 0 ")
    assert "it was at run 1" in first, "the one that was killed comes first"
    assert "train.py:" in first
    assert "all_reduce" in second, "the other one was waiting for it"

    assert main(["why", "dumps", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is False
    assert report["coverage"]["unfinished"] == [1, 0]
    killed = report["coverage"]["ranks"][1]
    assert (killed["state"], killed["finished"]) == ("died", False)
    assert killed["node"]

    assert main(["ranks", "dumps"]) == 3
    assert "Rank 1 did not finish" in capsys.readouterr().out
    assert main(["health", "dumps"]) == 0
    assert "Rank 1 did not finish" in capsys.readouterr().err


def test_a_hanging_rank_is_told_from_one_that_goes_on_and_one_that_is_stopped(launched, capsys, monkeypatch):
    launched("hang")

    def states():
        with suppress(NotADirectoryError):
            return {each.rank: each for each in SessionDir("dumps").coverage().ranks}
        return {}

    def both_stand():
        found = states()
        return len(found) == 2 and "all_reduce" in found[0].call and found[1].function == "waits" and found

    eventually(both_stand)
    assert main(["why", "dumps"]) == 0, "half a minute is not over yet"
    assert "✓ healthy so far" in capsys.readouterr().out

    monkeypatch.setattr(coverage, "HANG_SECS", 0.5)
    eventually(lambda: all(each.state == "hangs" for each in states().values()))
    assert main(["why", "dumps"]) == 3
    shown = flat(capsys.readouterr().out)
    assert "Rank 0 does not go on: it has been at one place for" in shown
    assert "in step, executing torch.distributed.distributed_c10d.all_reduce, after " in shown
    line = TRAIN.splitlines().index("    time.sleep(1000)") + 1
    assert f"train.py:{line} in waits" in shown

    pid = states()[1].pid
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: states()[1].state == "stopped")
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: states()[1].state == "died")
