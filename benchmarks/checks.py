"""Measures what checks cost beside health: steps whose health is recorded, with and without looking at updates.

A block is the first so many steps of a program, whose updates are looked at as in `tensortap run`: 0 to 10, 20, 30, …
So short blocks show the dear beginning, longer ones what a training pays. Blocks with and without take turns in one
process on one model, now the one first and now the other. Of each step of a block the fastest of all rounds counts; the
ratio is that of their sums. The last columns are what one update costs that is looked at, and one that is not.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from overhead import CLEANERS, FLOATS, open_dump
from workloads import WORKLOADS

from tensortap.engines.torch.updates import UpdateCollector
from tensortap.sink.retention import is_sample
from tensortap.store.updates import UpdateLog

INSIDE: list[float] = []
"""Seconds that the looks of one block took, measured by themselves."""


class Timed(UpdateCollector):
    """Knows how long it takes itself."""

    def _attempt(self, action: Any, *arguments: Any) -> None:
        before = time.thread_time()
        super()._attempt(action, *arguments)
        INSIDE[-1] += time.thread_time() - before


def block(running: Any, workload: Any, steps: int, program: Any | None) -> list[float]:
    """Seconds of each step, of all threads; with updates looked at if there is a program."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        log = UpdateLog(Path(folder))
        collector = None if program is None else Timed(program, lambda: len(times), log.add)
        INSIDE.append(0.0)
        for _ in range(steps):
            before = time.process_time()
            running.run(None, feed_dict=workload.batch)
            times.append(time.process_time() - before)
        if collector is not None:
            collector.close()
        log.close()
    for clean in CLEANERS:
        clean()
    return times


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workload", nargs="+", default=["gpt", "mlp", "lstm"], choices=list(WORKLOADS))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{'workload':9} {'health':>10} {'+ checks':>10} {'ratio':>7} {'looked at':>10} {'not':>9} {'inside':>8}"
    )
    for name in options.workload:
        with ExitStack() as stack:
            workload = WORKLOADS[name]()
            running, _, _ = open_dump(workload, stack, "DebugNumericSummary", **FLOATS)
            program = running.engine_session().program
            block(running, workload, 4, None)
            block(running, workload, 4, program)
            INSIDE.clear()
            times: dict[bool, list[list[float]]] = {False: [], True: []}
            for number in range(options.rounds):
                for has_checks in (bool(number % 2), not number % 2):
                    each = block(running, workload, options.steps, program if has_checks else None)
                    times[has_checks].append(each)
            plain, checked = ([min(step) for step in zip(*times[way], strict=True)] for way in (False, True))
            more = [with_checks - without for with_checks, without in zip(checked, plain, strict=True)]
            looked = [each for count, each in enumerate(more) if is_sample(count)]
            other = [each for count, each in enumerate(more) if not is_sample(count)]
            inside = statistics.median(filter(None, INSIDE)) / sum(checked)
            print(
                f"{name:9} {statistics.mean(plain) * 1e3:8.2f}ms {statistics.mean(checked) * 1e3:8.2f}ms"
                f" {sum(checked) / sum(plain):7.3f}"
                f" {statistics.median(looked) * 1e3:+8.2f}ms {statistics.median(other) * 1e6:+7.0f}µs {inside:+8.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
