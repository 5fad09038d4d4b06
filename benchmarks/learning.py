"""Measures what `tensortap run` costs while it learns a program: the seconds up to the end of its tenth step.

    python benchmarks/learning.py deep --rounds 3

A program is executed by `python` and by `tensortap run` in turn, each time in a new process. It times its first ten
steps and ten more, in which it repeats itself. What the first ten take more when watched is `added`; `learning` is that
without what ten settled steps take more, so it is what names, lines and graphs cost once. Medians of the rounds; the
importing of torch and the making of the model are not in it. `cpu` is the processor time of all threads.

`many` is different programs one after the other in one process, all of their names new: milliseconds of processor time
for each after the first, the last and some between them, and the memory of the process.

`start` is a Python that imports no framework: milliseconds that it takes longer from its start to its end below
`tensortap run`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from program_zoo import PROGRAMS, RANKS, Step, Transformer
from torch import nn
from torch.nn import functional as F
from workloads import WORKLOADS

STEPS = 10
TENSORTAP = "tensortap"


def workload(name: str) -> Callable[[], Step]:
    """One of the steps that speed budgets are stated for."""

    def made() -> Step:
        chosen = WORKLOADS[name]()
        return lambda: chosen.step(**chosen.batch)

    return made


def trained(model: nn.Module, batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> Step:
    """A step of AdamW on batches of tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        x, y = batch()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def deep() -> Step:
    """A transformer of 222 blocks: 2,002 modules, 2,668 parameters, about 40,000 nodes a step."""
    model = Transformer(100, 16, 16, 2, 222)
    tokens = torch.randint(100, (2, 17))
    return trained(model, lambda: (tokens[:, :-1], tokens[:, 1:]))


def chain() -> Step:
    """1,000 linear layers and as many activations with SGD: 2,001 modules, about 16,000 nodes a step."""
    model = nn.Sequential(*(part for _ in range(1000) for part in (nn.Linear(8, 8), nn.Tanh())))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(4, 8)

    def step() -> None:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def lengths() -> Step:
    """Sentences of another length in every batch."""
    model = Transformer(100, 128, 64, 4, 4)
    number = 0

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal number
        number += 1
        tokens = torch.randint(100, (4 + number % 5, 20 + number * 7 % 100))
        return tokens[:, :-1], tokens[:, 1:]

    return trained(model, batch)


LEARNED: dict[str, Callable[[], Step]] = {
    "mlp": workload("mlp"),
    "gpt": workload("gpt"),
    "deep": deep,
    "chain": chain,
    "ddp": PROGRAMS["ddp"],
    "fsdp2": PROGRAMS["fsdp2"],
    "lengths": lengths,
}


# --- many programs ---------------------------------------------------------------------------------

ACTIVATIONS = (torch.relu, torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.square, F.gelu, F.silu)
OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)


class Tiny(nn.Module):
    """A model that no other program has: its layers have names of their own."""

    def __init__(self, number: int, chance: random.Random) -> None:
        super().__init__()
        self.width = chance.randint(3, 9)
        self.parts = [f"part_{number}_{each}" for each in range(chance.randint(1, 4))]
        self.activations = [chance.choice(ACTIVATIONS) for _ in self.parts]
        for part in self.parts:
            self.add_module(part, nn.Linear(self.width, self.width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, activation in zip(self.parts, self.activations, strict=True):
            x = activation(self.get_submodule(part)(x) * 0.1)
        return x


def tiny_program(number: int) -> None:
    """Make a model, train it for a few steps and forget it."""
    chance = random.Random(number)
    model = Tiny(number, chance)
    optimizer: torch.optim.Optimizer = chance.choice(OPTIMIZERS)(model.parameters(), lr=1e-3)  # type: ignore[operator]
    x = torch.randn(chance.randint(2, 6), model.width)
    for _ in range(chance.randint(1, 4)):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def execute_many(count: int) -> dict[str, Any]:
    """Milliseconds of processor time of each program of a block, and megabytes after it."""
    block = 100
    tiny_program(-1)  # what torch itself does the first time
    blocks = []
    for begin in range(0, count, block):
        cpu = time.process_time()
        for number in range(begin, begin + block):
            tiny_program(number)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        blocks.append(((time.process_time() - cpu) * 1e3 / block, pages * os.sysconf("SC_PAGE_SIZE") / 1e6))
    return {"blocks": blocks}


# --- in a process of its own -----------------------------------------------------------------------


def execute(name: str) -> dict[str, Any]:
    """Seconds of the first ten steps and of ten more, by the clock and of the processor."""
    step = LEARNED[name]()
    found: dict[str, Any] = {}
    for kind in ("first", "settled"):
        if kind == "settled":
            for _ in range(STEPS):
                step()
        cpu, began = time.process_time(), time.perf_counter()
        for _ in range(STEPS):
            step()
        found[kind] = time.perf_counter() - began, time.process_time() - cpu
    return found


def started(name: str, is_watched: bool, *arguments: str) -> dict[str, Any]:
    """What a new process says of a program."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        command = [sys.executable]
        if name in RANKS:
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS[name])]
        if is_watched:
            command += ["-m", TENSORTAP, "run", "-q", "-o", f"{made}/runs"]
        answer = Path(made, "answer")
        command += [__file__, name, "--answer", str(answer), *arguments]
        environment = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        subprocess.run(command, check=True, env={**os.environ, **environment})
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


def measure(name: str, rounds: int) -> str:
    """A line of the table."""
    answers: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for number in range(rounds):
        for is_watched in (False, True) if number % 2 == 0 else (True, False):
            answers[is_watched].append(started(name, is_watched))

    def median(is_watched: bool, kind: str, clock: int) -> float:
        return statistics.median(each[kind][clock] for each in answers[is_watched])

    plain, watched = median(False, "first", 0), median(True, "first", 0)
    added = [median(True, "first", clock) - median(False, "first", clock) for clock in (0, 1)]
    settled = [median(True, "settled", clock) - median(False, "settled", clock) for clock in (0, 1)]
    return (
        f"{name:8} {plain:8.2f} {watched:10.2f} {added[0]:7.2f} {added[0] - settled[0]:9.2f}"
        f" {added[1] - settled[1]:14.2f}"
    )


def measure_many(count: int) -> None:
    """The table of many programs."""
    plain = [cpu for cpu, _ in started("many", False, "--count", "500")["blocks"]]
    blocks = started("many", True, "--count", str(count))["blocks"]
    print(f"\nprograms so far  cpu, ms each  MB    (plain {statistics.median(plain):.2f} ms)")
    shown = sorted({0, 1, 4, 9, 19, len(blocks) - 1})
    for number in (each for each in shown if each < len(blocks)):
        cpu, megabytes = blocks[number]
        print(f"{100 * (number + 1):15} {cpu:13.2f} {megabytes:4.0f}")


def measure_start(rounds: int) -> None:
    """How much longer a Python takes that does nothing."""
    with tempfile.TemporaryDirectory() as made:
        say_environment = "import json, os; print(json.dumps(dict(os.environ)))"
        script = Path(made, "environment.py")
        script.write_text(say_environment)
        command = [sys.executable, "-m", TENSORTAP, "run", "-q", "-o", f"{made}/runs", str(script)]
        below = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        times: dict[str, list[float]] = {"plain": [], "below": []}
        for number in range(rounds):
            for kind in ("plain", "below") if number % 2 == 0 else ("below", "plain"):
                began = time.perf_counter()
                environment = below if kind == "below" else {**os.environ}
                subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)
                times[kind].append((time.perf_counter() - began) * 1e3)
    added = statistics.median(
        mine - theirs for mine, theirs in zip(times["below"], times["plain"], strict=True)
    )
    print(f"\na Python that does nothing: {statistics.median(times['plain']):.1f} ms, {added:.2f} ms more")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", help="all of them by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=3000, help="how many programs `many` is")
    parser.add_argument(
        "--answer", help="execute a program in this process and write what it took to this file"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.answer:
        name = options.programs[0]
        found = execute_many(options.count) if name == "many" else execute(name)
        if os.environ.get("RANK", "0") == "0":
            Path(options.answer).write_text(json.dumps(found))
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        return
    chosen = options.programs or [*LEARNED, "start", "many"]
    print("program  plain, s  watched, s  added  learning  learning, cpu")
    for name in chosen:
        if name in LEARNED:
            print(measure(name, options.rounds), flush=True)
    if "start" in chosen:
        measure_start(20 * options.rounds)
    if "many" in chosen:
        measure_many(options.count)


if __name__ == "__main__":
    main()
