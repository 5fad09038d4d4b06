"""Runs in a process of its own: trains and dumps in forked children, and kills each at a random moment.

    python -m tests.debug.killed ROOT SEED TIMES

Every child prints the number of a run once it has been flushed; what it printed is kept in `flushed`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo
from torch import nn

import tensortap as tt
import tensortap.debug.hooks
import tensortap.engines.observe.watching
import tensortap.sink.publisher
import tensortap.store


def train(root: Path, pipe: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss}

    ops = ["DebugIdentity", "DebugNumericSummary"]
    hook = tt.DumpingDebugHook(root / "dumps", watch_fn=lambda fetches, feeds: tt.WatchOptions(ops))
    with tt.MonitoredSession(tt.torch.Session(step), hooks=[hook]) as session:
        for run in range(10_000):
            session.run("loss", {"x": torch.full((32, 64), float(run))})
            if run % 3 == 0:
                hook.flush()
                os.write(pipe, f"{run}\n".encode())


def wait_for_content(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.01)


def main(root: Path, seed: int, times: int) -> None:
    torch.set_num_threads(1)
    # Warm up what every child would otherwise spend its short life on.
    tt.torch.Session(lambda x: x + 1).run(
        None, {"x": torch.ones(1)}, tt.RunOptions(taps=[lambda n, s, t: None])
    )
    moments = random.Random(seed)
    for number in range(times):
        place = root / str(number)
        place.mkdir()
        flushed = os.open(place / "flushed", os.O_CREAT | os.O_WRONLY)
        child = os.fork()
        if child == 0:
            train(place, flushed)
            os._exit(0)
        if (
            number % 2
        ):  # every other one lives long enough to have flushed something, however slow the machine
            wait_for_content(place / "flushed")
        time.sleep(moments.uniform(0.02, 0.3))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(flushed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
