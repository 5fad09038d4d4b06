"""Programs that train in processes they start: these are watched, and what cannot be is never called healthy."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from tensortap.commands import main
from tensortap.commands.unwatched import advice
from tensortap.store.processes import UnwatchedChild

RUN = [sys.executable, "-m", "tensortap", "run", "-o", "dumps"]
ALONE = {
    name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_PORT")
}


def ended(command, **environment):
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**ALONE, "OMP_NUM_THREADS": "1", **environment},
    )


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "training.py").write_text(TRAINING)
    return tmp_path


TRAINING = """
import sys, torch
from torch import nn

def train(number=0, scale=float("nan")):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(8, 4)).square().mean() * scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained", flush=True)

if __name__ == "__main__":
    train()
"""

EVERY_WAY = """
import os, subprocess, sys
import torch, torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset
from training import train

def evaluate(number):
    torch.nn.Linear(2, 2)(torch.ones(2))

if __name__ == "__main__":
    mp.set_start_method("fork")  # which is refused once somebody has decided on another
    data = TensorDataset(torch.randn(8, 4))
    for start in ("fork", "spawn"):  # these load data
        list(DataLoader(data, num_workers=1, multiprocessing_context=start))
    train(scale=1.0)
    subprocess.run([sys.executable, "-c", "print('no framework')"])
    # These train, or may:
    for start in ("fork", "spawn", "forkserver"):
        child = mp.get_context(start).Process(target=train)
        child.start()
        child.join()
    if (child := os.fork()) == 0:
        evaluate(0)
        os._exit(0)
    os.waitpid(child, 0)
    subprocess.run([sys.executable, "training.py"], check=True)
    sys.exit(7)
"""


def test_children_are_watched_however_they_were_started(here, capsys):
    (here / "train.py").write_text(EVERY_WAY)
    done = ended([*RUN, "train.py"])
    assert done.returncode == 7  # the program's own
    assert done.stdout.count("trained") == 5
    said = " ".join(done.stderr.split())
    assert "not watched" not in said
    assert (
        "(6 processes)" in said
    )  # those that load data do not count, and the one without a framework neither
    assert said.count("first bad value") == 1
    assert "line training.py:9 in train" in said

    assert main(["why", "dumps", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["first_bad"]["source"]["line"] == 9
    assert report["coverage"]["complete"]
    assert len(report["coverage"]["ranks"]) == 6
    assert main(["why", "dumps"]) == 1
    assert re.search(r"NaN at step 0 on process \d+\n", capsys.readouterr().out)


def test_a_child_that_fails_prints_the_traceback_it_prints_alone(here):
    (here / "fails.py").write_text(
        "import torch\n\ndef deep():\n    raise ValueError('planted')\n\n"
        "torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()\ndeep()\n"
    )
    (here / "starts.py").write_text("import subprocess, sys\nsubprocess.run([sys.executable, 'fails.py'])\n")
    alone = ended([sys.executable, "fails.py"])
    watched = ended([*RUN, "starts.py"])
    assert "line 4, in deep" in alone.stderr
    assert alone.stderr in watched.stderr
    assert "fails.py:4 in deep" in " ".join(watched.stderr.split())


def test_children_that_cannot_be_watched_are_told_of(here, capsys):
    (here / "train.py").write_text(
        """
import subprocess, sys
from training import train
train(scale=1.0)
sys.exit(subprocess.run([sys.executable, "-E", "training.py"]).returncode)
"""
    )
    done = ended([*RUN, "train.py"])
    assert (done.returncode, done.stdout.count("trained")) == (0, 2)
    said = done.stderr
    assert re.search(r"^tensortap: child process \d+ uses .* and is not watched$", said, re.MULTILINE)
    assert said.index("is not watched") < said.index("  seen ")
    assert "health   no bad value in what was seen\n" in said
    assert "instead  where the program starts it:\n           python -m tensortap run training.py\n" in said

    assert main(["why", "dumps"]) == 3
    shown = capsys.readouterr().out
    assert "healthy" not in shown
    assert "? not all was seen" in shown
    assert main(["why", "dumps", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["healthy"], report["first_bad"]) == (False, None)
    assert report["coverage"]["unwatched_children"] == 1
    for command in ("ls", "health"):
        assert main([command, "dumps"]) == 0
        assert "1 child process" in capsys.readouterr().err


# As Lightning's `ddp`: the first rank starts the others with its own command line.
STARTS_ITSELF = """
import os, subprocess, sys
import torch, torch.distributed as dist
from torch import nn
if "LOCAL_RANK" not in os.environ:
    os.environ.update(MASTER_ADDR="127.0.0.1", WORLD_SIZE="2", LOCAL_RANK="0", RANK="0")
    other = {**os.environ, "LOCAL_RANK": "1", "RANK": "1"}
    flags = os.environ.get("FLAGS", "").split()
    subprocess.Popen([sys.executable, *flags, os.path.abspath(sys.argv[0]), *sys.argv[1:]], env=other)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(4):
    x = torch.randn(8, 4)
    if step == 2 and dist.get_rank() == 1:
        x = x / 0 * 0
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def test_a_rank_that_another_one_has_started_is_accused_of_what_it_did(here, capsys):
    (here / "train.py").write_text(STARTS_ITSELF)
    done = ended([*RUN, "train.py"], MASTER_PORT=free_port())
    assert done.returncode == 0, done.stderr
    assert "not watched" not in done.stderr
    assert main(["why", "dumps", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["first_bad"]["rank"], report["first_bad"]["step"]) == (1, 2)
    assert report["coverage"]["complete"]


def test_a_rank_is_not_accused_of_what_may_have_come_from_one_that_nobody_watched(here, capsys):
    (here / "train.py").write_text(STARTS_ITSELF)
    done = ended([*RUN, "train.py", "--lr", "1"], MASTER_PORT=free_port(), FLAGS="-E")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^tensortap: child process \d+ uses torch, tensorflow or jax and is not watched$",
        done.stderr,
        re.MULTILINE,
    )
    assert "torchrun --nproc-per-node 2 -m tensortap run train.py --lr 1" in done.stderr
    answer, _, summary = done.stderr.partition("\ntensortap\n")
    for told in (answer, summary):
        assert "Rank 1 of 2 was not watched" in told
    assert main(["why", "dumps", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert "may have come bad from there" in " ".join(report["first_bad"]["origin"]["text"].split())
    assert report["coverage"]["not_watched"] == [1]
    assert main(["ranks", "dumps"]) == 1
    assert "Rank 0 went bad first of those that were watched: run 2" in capsys.readouterr().out


@pytest.mark.parametrize("launcher", [["-m", "torch.distributed.run"], ["torchrun"]])
def test_a_launcher_may_stand_behind_tensortap_run(here, capsys, launcher):
    done = ended([*RUN, *launcher, "--nproc-per-node", "2", "--standalone", "training.py", "--lr", "1"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 2
    assert "not watched" not in done.stderr
    assert "(2 ranks)" in " ".join(done.stderr.split())
    assert main(["why", "dumps", "--json"]) == 1
    ranks = json.loads(capsys.readouterr().out)["coverage"]["ranks"]
    assert [(each["rank"], each["local_rank"], each["state"]) for each in ranks] == [
        (0, 0, "ended"),
        (1, 1, "ended"),
    ]


@pytest.mark.parametrize(
    ("program", "command", "typed"),
    [
        (
            ["-m", "accelerate.commands.launch", "t.py"],
            "python t.py",
            "accelerate launch -m tensortap run t.py",
        ),
        (
            ["/usr/bin/torchrun", "t.py", "a b"],
            "python -u t.py 'a b'",
            "torchrun -m tensortap run t.py 'a b'",
        ),
        (["torchrun", "-m", "pkg.train"], "python -m pkg.train", "torchrun -m tensortap run -m pkg.train"),
        (
            ["-m", "pkg.train"],
            "python -m pkg.train",
            "torchrun --nproc-per-node 2 -m tensortap run -m pkg.train",
        ),
    ],
)
def test_what_to_type_instead(program, command, typed):
    assert advice(program, [UnwatchedChild(1, "loaded", "command", command)]) == ("", typed)
