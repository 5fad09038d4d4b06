"""Measures what a run costs besides its operators, under `tensortap run`: a step that trains, and a call that does not.

    python benchmarks/per_run.py

A program executes blocks of steps whose model has few operators, and blocks whose model has more of them; what a step
of none would take follows from both. It runs in two processes that take turns, started by `python` and by
`tensortap run`, and the difference between them is the fixed cost: of a step of an optimizer, with which a run ends and
the next begins, and of a call of a model under `no_grad`, of which sixteen share a run. Processor time of the thread
that trains, and of all threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from programs import Program, started
from torch import Tensor, nn

SHORT, LONG = 8, 40
BLOCK = 320
WARM_UP = 5
KINDS = ("step", "call")


class Chain(nn.Module):
    """So many operators, one after the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = x * self.weight
        return x


class Nothing(torch.optim.Optimizer):
    """Steps, and does nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})

    def step(self, closure: Any = None) -> None:
        """Say that a step is over."""


def program(kind: str) -> dict[int, Callable[[], None]]:
    """The steps of a program, by how many operators each has."""
    x = torch.ones(16)
    optimizers = []  # as long as there is one, the program trains

    def step_of(count: int) -> Callable[[], None]:
        model = Chain(count)
        optimizer = Nothing(model)
        optimizers.append(optimizer)

        def step() -> None:
            model(x)
            optimizer.step()

        def call() -> None:
            assert optimizers
            with torch.no_grad():
                model(x)

        return step if kind == "step" else call

    return {count: step_of(count) for count in (SHORT, LONG)}


def serve(kind: str, commands: str, answers: str) -> None:
    """Execute blocks when told to, and say how many microseconds a step took in them."""
    torch.set_num_threads(1)
    steps = program(kind)
    with Path(commands).open() as wanted, Path(answers).open("w") as told:
        for line in wanted:
            step = steps[int(line)]
            process, thread = time.process_time(), time.thread_time()
            for _ in range(BLOCK):
                step()
            process, thread = time.process_time() - process, time.thread_time() - thread
            print(json.dumps([each / BLOCK * 1e6 for each in (thread, process)]), file=told, flush=True)


def fixed(running: Program) -> list[float]:
    """What a step of no operators takes, in microseconds, of its thread and of all threads."""
    few, many = running.run(SHORT), running.run(LONG)
    return [
        one - (other - one) / (LONG - SHORT) * SHORT
        for one, other in zip(few, many, strict=True)  # type: ignore[call-overload]
    ]


def measured(kind: str, rounds: int, watch: list[str]) -> list[tuple[float, float]]:
    """What a step costs more, round by round."""
    found = []
    with (
        started(kind, None, __file__, ranks=0) as plain,
        started(kind, watch, __file__, ranks=0) as watched,
    ):
        for _ in range(WARM_UP):
            fixed(plain), fixed(watched)
        for _ in range(rounds):
            thread, process = (w - p for w, p in zip(fixed(watched), fixed(plain), strict=True))
            found.append((thread, process))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", help="; ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--options", default="", help="further options of `tensortap run`")
    parser.add_argument("--pipes", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pipes:
        serve(options.kinds[0], options.pipes[0] + "0", options.pipes[1] + "0")
        return
    print("fixed cost of  its thread, µs   quartiles  all threads, µs")
    for kind in options.kinds or KINDS:
        found = measured(kind, options.rounds, options.options.split())
        threads, processes = zip(*found, strict=True)
        low, middle, high = statistics.quantiles(threads, n=4, method="inclusive")
        print(
            f"{kind:13} {middle:15.0f}   {low:.0f}–{high:.0f} {statistics.median(processes):17.0f}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
