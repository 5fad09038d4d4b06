"""Measures what one repeated operator costs, in microseconds on top of what it takes alone.

    python benchmarks/per_op.py

A step executes some hundred operators on small tensors. The variants take turns: nothing; names and data flow of every
operator; these and the health of every output. Beside them, in a process of their own because there is one place for
it: nothing, and a kernel in the place of all others that does nothing (`floors.py`), for which PyTorch packs the inputs
of every operator. A run has a fixed cost besides: it is measured by steps of two lengths, and taken out.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from floors import observe_for_nothing

import tensortap as tt

KEY = "TESTING_ONLY_GenericMode"
SHORT, LONG = 100, 500
WARM_UP = 5


def step_of(count: int, elements: int) -> Callable[[], torch.Tensor]:
    """So many operators, one after the other, on tensors of so many elements."""
    start, factor = torch.ones(elements), torch.full((elements,), 0.999)

    def step() -> torch.Tensor:
        value = start
        for _ in range(count // 4):
            value = value.mul(factor).add(factor)
            value = value.neg().abs()
        return value

    return step


class Ways:
    """The ways to call a step."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def plain(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """As it is."""
        return step

    def kernel(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """With a kernel that does nothing in the place of all others."""
        observe_for_nothing("kernel")
        switch = torch._C._dispatch_tls_set_dispatch_key_included  # type: ignore[attr-defined]
        switch(KEY, False)

        def call() -> None:
            switch(KEY, True)
            try:
                step()
            finally:
                switch(KEY, False)

        return call

    def names(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Every operator named and connected."""
        session = self._stack.enter_context(tt.torch.Session(step, interceptor="native"))
        options = tt.RunOptions(output_partition_graphs=True)
        return lambda: session.run(None, options=options)

    def health(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """The health of every output recorded, and held back in memory."""
        root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        hook = tt.DumpingDebugHook(
            root / "dumps",
            lambda fetches, feeds: tt.WatchOptions("DebugNumericSummary"),
            retention=tt.Retention(when="inf_or_nan", last=1),
        )
        session = tt.torch.Session(step, interceptor="native")
        running = self._stack.enter_context(tt.MonitoredSession(session, hooks=[hook]))
        return lambda: running.run(None)


def measured(elements: int, rounds: int, *more: str) -> dict[str, tuple[float, float]]:
    """Of each way: microseconds per operator more than plain, and microseconds per run."""
    with ExitStack() as stack:
        ways = Ways(stack)
        names = ("plain", *more)
        calls = {
            (name, count): getattr(ways, name)(step_of(count, elements))
            for name in names
            for count in (SHORT, LONG)
        }
        for call in calls.values():
            for _ in range(WARM_UP):
                call()
        times: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
        gc.disable()
        for _ in range(rounds):
            for key, call in calls.items():
                began = time.thread_time_ns()
                call()
                times[key].append((time.thread_time_ns() - began) / 1e3)
            gc.collect(0)
        gc.enable()
    middle = {key: statistics.median(each) for key, each in times.items()}
    per_op = {name: (middle[name, LONG] - middle[name, SHORT]) / (LONG - SHORT) for name in names}
    per_run = {name: middle[name, SHORT] - SHORT * per_op[name] for name in names}
    return {name: (per_op[name] - per_op["plain"], per_run[name] - per_run["plain"]) for name in names} | {
        "plain": (per_op["plain"], 0.0)
    }


def measured_apart(elements: int, rounds: int) -> dict[str, tuple[float, float]]:
    """The kernel that does nothing, in a process where ours is not in its place."""
    command = [sys.executable, __file__, "--rounds", str(rounds), "--floor", str(elements)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {name: tuple(each) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, nargs="+", default=[16, 256, 1024])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument(
        "--floor", type=int, metavar="ELEMENTS", help="only the kernel that does nothing, as JSON"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.floor is not None:
        print(json.dumps(measured(options.floor, options.rounds, "kernel")))
        return
    print("elements  plain, µs/op  empty kernel  names  health      run with health, µs")
    for elements in options.elements:
        floor = measured_apart(elements, options.rounds)
        found = measured(elements, options.rounds, "names", "health")
        print(
            f"{elements:8} {found['plain'][0]:13.2f} {floor['kernel'][0]:+13.2f} {found['names'][0]:+6.2f} "
            f"{found['health'][0]:+7.2f} {found['health'][1]:24.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
