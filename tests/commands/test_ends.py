"""Does it end? Programs of many shapes under `tensortap run`: each ends when it would alone, and as it would alone."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

TENSORTAP = [sys.executable, "-m", "tensortap", "run", "-o"]
END_SECS = 2.0

PRELUDE = """
import asyncio, atexit, concurrent.futures, multiprocessing, os, signal, subprocess, sys, threading, time
import torch
from torch import nn
torch.set_num_threads(1)
net = nn.Linear(3, 1)
def step(times=1):
    for _ in range(times):
        net(torch.ones(2, 3)).sum().backward()
def last(stream=None):
    print("last", repr(time.time()), file=stream or sys.stdout, flush=True)
"""

PROGRAMS = {
    "lbfgs": (
        """
cell, out = nn.LSTMCell(1, 8), nn.Linear(8, 1)
parameters = [*cell.parameters(), *out.parameters()]
optimizer = torch.optim.LBFGS(parameters, lr=0.1, max_iter=4)
def run(x, more=0):
    h = c = torch.zeros(len(x), 8)
    for x_t in x.split(1, dim=1):
        h, c = cell(x_t, (h, c))
    for _ in range(more):
        h, c = cell(out(h), (h, c))
    return out(h)
def closure():
    optimizer.zero_grad()
    loss = (run(x) - 1).square().mean()
    loss.backward()
    return loss
x = torch.ones(2, 60)
for _ in range(2):
    optimizer.step(closure)
    with torch.no_grad():
        print(run(x, more=200).isfinite().all().item())
last()
""",
        0,
        "True\nTrue\n",
    ),
    "more operations than are recorded": (
        """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = net(torch.ones(1, 3))
for _ in range(13_000):
    x = x * 1.0
x.sum().backward()
optimizer.step()
last()
""",
        0,
        "",
    ),
    "no module for long": (
        """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = [torch.full((3,), float(i)) for i in range(6_000)]
step()
optimizer.step()
last()
""",
        0,
        "",
    ),
    "a closure": (
        """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.step(lambda: (step(), torch.zeros(()))[1])
last()
""",
        0,
        "",
    ),
    "a generator left open": (
        """
def batches():
    try:
        while True:
            yield torch.ones(2, 3)
    finally:
        print("closed", flush=True)
source = batches()
for _ in range(3):
    net(next(source)).sum().backward()
last()
""",
        0,
        "closed\n",
    ),
    "a daemon thread that goes on": (
        """
threading.Thread(target=lambda: (step(2), time.sleep(600)), daemon=True).start()
step(3)
time.sleep(0.1)  # in the middle of an operation torch itself would abort
last()
""",
        0,
        "",
    ),
    "a thread that outlives the program": (
        """
def later():
    time.sleep(0.5)
    step(2)
    last()
threading.Thread(target=later).start()
step(2)
""",
        0,
        "",
    ),
    "an atexit handler that computes": (
        """
atexit.register(lambda: (step(2), print("handled"), last()))
step(2)
""",
        0,
        "handled\n",
    ),
    "a forked child": (
        """
step(2)
child = os.fork()
if child == 0:
    step(2)
    print("child", flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
last()
""",
        0,
        "child\n0\n",
    ),
    "a forked child that ends as a program does": (
        """
step(2)
child = os.fork()
if child == 0:
    step(2)
    sys.exit(0)
print(os.waitpid(child, 0)[1])
last()
""",
        0,
        "0\n",
    ),
    "a fork server": (
        """
if __name__ == "__main__":
    step(2)
    child = multiprocessing.get_context("forkserver").Process(target=print, args=("from the child",))
    child.start()
    child.join()
    last()
""",
        0,
        "from the child\n",
    ),
    "workers that load data": (
        """
data = torch.utils.data.TensorDataset(torch.ones(4, 3))
for (x,) in torch.utils.data.DataLoader(data, batch_size=2, num_workers=2):
    net(x).sum().backward()
last()
""",
        0,
        "",
    ),
    "an exception": ("step(2)\nlast()\nraise ValueError('enough')", 1, ""),
    "an exception with a hook": (
        """
sys.excepthook = lambda kind, error, traceback: print("hooked", kind.__name__)
step(2)
last()
raise ValueError("enough")
""",
        1,
        "hooked ValueError\n",
    ),
    "recursion without end": (
        """
def deeper():
    return net(torch.ones(1, 3)) + deeper()
try:
    deeper()
except RecursionError:
    print("deep enough")
last()
""",
        0,
        "deep enough\n",
    ),
    "sys.exit in the middle": ("step(2)\nlast()\nsys.exit(3)\nstep(2)", 3, ""),
    "os._exit": ("step(2)\nlast()\nos._exit(4)", 4, ""),
    "Ctrl-C in a step": (
        """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
step(2)
last()
os.kill(os.getpid(), signal.SIGINT)
step(10**9)
""",
        -signal.SIGINT,
        "",
    ),
    "a signal that kills": ("step(2)\nlast()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)", -15, ""),
    "a closed standard output": ("step(2)\nsys.stdout.close()\nlast(sys.stderr)", 0, ""),
    "asyncio": (
        """
async def main():
    await asyncio.gather(*(asyncio.to_thread(step) for _ in range(3)))
    step(2)
asyncio.run(main())
last()
""",
        0,
        "",
    ),
    "a pool of threads": (
        """
pool = concurrent.futures.ThreadPoolExecutor(2)
print(len([pool.submit(step) for _ in range(4)]))
step(2)
last()
""",
        0,
        "4\n",
    ),
    "a program of its own": (
        """
step(2)
print(subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True).stdout, end="")
last()
""",
        0,
        "1\n",
    ),
}


def _until_the_end(command, folder):
    began = time.time()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    ended = time.time()
    said = re.search(r"^last (.*)\n", done.stdout + done.stderr, re.MULTILINE)
    return SimpleNamespace(
        code=done.returncode,
        stdout=re.sub(r"^last .*\n", "", done.stdout, flags=re.MULTILINE),
        stderr=done.stderr,
        secs=ended - float(said[1]) if said else None,
        whole=ended - began,
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What became of every program; two of them run at a time, as do the ones without us that show how slow it is."""
    folder = tmp_path_factory.mktemp("programs")
    commands = {}
    for number, (name, (text, _, _)) in enumerate(PROGRAMS.items()):
        (folder / f"program_{number}.py").write_text(PRELUDE + text)
        commands[name] = [*TENSORTAP, f"dumps_{number}", f"program_{number}.py"]
    (folder / "alone.py").write_text(
        PRELUDE + "optimizer = torch.optim.SGD(net.parameters())\nstep(2)\nlast()"
    )
    alone = [sys.executable, "alone.py"]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(_until_the_end, alone, folder)
        running = {name: pool.submit(_until_the_end, command, folder) for name, command in commands.items()}
        final = pool.submit(_until_the_end, alone, folder)
        found = {name: each.result() for name, each in running.items()}
    # Where even python takes its time to end, we may too.
    slow = max(first.result().secs, final.result().secs)
    return SimpleNamespace(found=found, most=END_SECS + 10 * slow)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_ends_when_it_would_alone(name, outcomes):
    _, code, output = PROGRAMS[name]
    outcome = outcomes.found[name]
    assert outcome.secs is not None, outcome.stderr
    assert (outcome.code, outcome.stdout) == (code, output), outcome.stderr
    assert outcome.secs < outcomes.most, outcome.stderr


def test_a_wait_at_the_end_is_told_and_can_be_left(tmp_path):
    (tmp_path / "train.py").write_text(
        PRELUDE
        + """
from tensortap.sink.queue import shared_queue
step(3)
shared_queue().submit(lambda: time.sleep(60))  # a disk that does not answer
last()
"""
    )
    process = subprocess.Popen(
        [*TENSORTAP, "dumps", "train.py"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    said = []
    for line in process.stderr:
        said.append(line)
        if "is over" in line:
            process.send_signal(signal.SIGINT)
            interrupted = time.monotonic()
    assert process.wait(60) == 0
    assert time.monotonic() - interrupted < 20
    assert "Ctrl-C to leave" in said[-2]
    assert "what was written can be read in dumps" in said[-1]
    process.stdout.close()
    process.stderr.close()
