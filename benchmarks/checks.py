"""Measures what checks cost beside health: steps whose health is recorded, with and without looking at updates.

A round is the first so many steps of a program, whose updates are looked at as in `tensortap run`: 0 to 10, 20, 30, …
So short rounds show the dear beginning, longer ones what a training pays. Beside each step with checks there is one
without, on the same model, now before and now after it, for which everything that checks have put into PyTorch is taken
out again. Of each step the median of the differences of all rounds counts, so that a machine that slows down for a
while does not matter; the ratio is that of their sum to the other steps. The last columns are what one update costs
that is looked at, and one that is not, and what looks take by themselves, as a share.
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
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from workloads import WORKLOADS

from tensortap.engines.torch import backward_passes
from tensortap.engines.torch.updates import UpdateCollector
from tensortap.sink.retention import is_sample
from tensortap.store.updates import UpdateLog

INSIDE: list[float] = []
"""Seconds that the looks of one round took, measured by themselves."""


class Timed(UpdateCollector):
    """Knows how long it takes itself, and can be taken away for a step."""

    def _attempt(self, action: Any, *arguments: Any) -> None:
        before = time.thread_time()
        super()._attempt(action, *arguments)
        INSIDE[-1] += time.thread_time() - before

    def leave(self) -> None:
        """PyTorch is as if it had never been."""
        for handle in self._handles:
            handle.remove()
        backward_passes.stop_listening(self)
        for owner, name, _, theirs in reversed(self._events._replaced):
            setattr(owner, name, theirs)

    def come_back(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        backward_passes.listen(self)
        for owner, name, ours, _ in self._events._replaced:
            setattr(owner, name, ours)


def round_of(running: Any, workload: Any, steps: int, program: Any) -> tuple[list[float], list[float]]:
    """Seconds of each step, of all threads: without checks, and with them."""
    plain: list[float] = []
    checked: list[float] = []

    def step(times: list[float]) -> None:
        before = time.process_time()
        running.run(None, feed_dict=workload.batch)
        times.append(time.process_time() - before)

    with tempfile.TemporaryDirectory() as folder:
        log = UpdateLog(Path(folder))
        collector = Timed(program, lambda: len(checked), log.add)
        collector.leave()
        INSIDE.append(0.0)
        for number in range(steps):
            if number % 2:
                step(plain)
            collector.come_back()
            step(checked)
            collector.leave()
            if not number % 2:
                step(plain)
        collector.close()
        log.close()
    for clean in CLEANERS:
        clean()
    return plain, checked


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
            round_of(running, workload, 4, program)
            INSIDE.clear()
            rounds = [round_of(running, workload, options.steps, program) for _ in range(options.rounds)]
        plain = [statistics.median(each) for each in zip(*(before for before, _ in rounds), strict=True)]
        more = [
            statistics.median(after - before for before, after in each)
            for each in zip(*(zip(*both, strict=True) for both in rounds), strict=True)
        ]
        looked = [each for count, each in enumerate(more) if is_sample(count)]
        other = [each for count, each in enumerate(more) if not is_sample(count)]
        base, added = statistics.mean(plain), statistics.mean(more)
        inside = statistics.median(INSIDE) / options.steps / base
        print(
            f"{name:9} {base * 1e3:8.2f}ms {(base + added) * 1e3:8.2f}ms {1 + added / base:7.3f}"
            f" {statistics.median(looked) * 1e3:+8.2f}ms {statistics.median(other) * 1e6:+7.0f}µs {inside:+8.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
