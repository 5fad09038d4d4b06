"""Measures what profiling costs: a profiled step, a step that is not profiled, the steps while a trace is written.

The first table compares one call of each variant, in rounds, as overhead.py does; what a hook has to write is
written before the next call begins. The second table says what that writing costs: how much longer the steps after a
profiled one take, altogether, until its trace is on disk, and how large the trace is.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from overhead import BASELINE, WARM_UP_CALLS, Call, at_least, format_table, make_row, report_progress
from workloads import WORKLOADS, Workload

Settle = Callable[[], object]
NEVER = 10**12


def nothing() -> None:
    """There is nothing to wait for."""


def plain(workload: Workload, stack: ExitStack) -> tuple[Call, Settle]:
    """The step called directly."""
    return lambda: workload.step(**workload.batch), nothing


def torch_profiler(workload: Workload, stack: ExitStack, memory: bool = False) -> tuple[Call, Settle]:
    """PyTorch's profiler by itself, its record not even looked at."""

    def call() -> None:
        with torch.autograd.profiler.profile(use_kineto=True, profile_memory=memory):
            workload.step(**workload.batch)

    return call, nothing


def torch_profiler_with_memory(workload: Workload, stack: ExitStack) -> tuple[Call, Settle]:
    """The same with every allocation."""
    return torch_profiler(workload, stack, memory=True)


def attached(workload: Workload, stack: ExitStack) -> tuple[Call, Settle]:
    """A ProfilerHook whose time has not come."""
    running, hook, _ = open_profiled(workload, stack, save_steps=NEVER)
    return running, hook.flush


def profiled(workload: Workload, stack: ExitStack) -> tuple[Call, Settle]:
    """A profiled step: times, names, dataflow, source lines."""
    running, hook, _ = open_profiled(workload, stack, save_steps=1)
    return running, hook.flush


def profiled_with_memory(workload: Workload, stack: ExitStack) -> tuple[Call, Settle]:
    """The same with every allocation and the lifetime of every tensor."""
    running, hook, _ = open_profiled(workload, stack, save_steps=1, show_memory=True)
    return running, hook.flush


VARIANTS: dict[str, Callable[[Workload, ExitStack], tuple[Call, Settle]]] = {
    BASELINE: plain,
    "plain again (noise)": plain,
    "hook attached, not profiling": attached,
    "torch.profiler": torch_profiler,
    "profiled": profiled,
    "torch.profiler, memory": torch_profiler_with_memory,
    "profiled, memory": profiled_with_memory,
}


def open_profiled(workload: Workload, stack: ExitStack, **options: Any) -> tuple[Call, Any, Path]:
    """A run under a ProfilerHook, the hook, and where it writes."""
    import tensortap as tt

    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tensortap-bench-")))
    hook = tt.ProfilerHook(output_dir=place, **options)
    session = tt.torch.Session(workload.step, modules=workload.modules, optimizers=workload.optimizers)
    running = stack.enter_context(tt.MonitoredSession(session, hooks=[hook]))
    return lambda: running.run(None, feed_dict=workload.batch), hook, place


def measure(workload: Workload, variants: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call by variant; each round starts with the next variant in turn."""
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    with ExitStack() as stack:
        made = {variant: VARIANTS[variant](workload, stack) for variant in variants}
        for call, settle in made.values():
            for _ in range(WARM_UP_CALLS):
                call()
            settle()
        for number in range(rounds):
            report_progress(f"  round {number + 1} of {rounds}")
            gc.collect()
            first = number % len(variants)
            for variant in (*variants[first:], *variants[:first]):
                call, settle = made[variant]
                start = time.perf_counter()
                call()
                times[variant].append(time.perf_counter() - start)
                settle()
    report_progress("")
    return times


def measure_writing(workload: Workload, memory: bool, rounds: int) -> tuple[float, int]:
    """Milliseconds that writing a trace adds to the steps after it, and the size of the trace in bytes."""
    extra = []
    with ExitStack() as stack:
        profiled_call, hook, place = open_profiled(workload, stack, save_steps=1, show_memory=memory)
        step = plain(workload, stack)[0]
        for _ in range(WARM_UP_CALLS):
            profiled_call()
        hook.flush()
        alone = statistics.median(seconds(step) for _ in range(max(rounds, 5)))
        for _ in range(rounds):
            profiled_call()
            start, steps = time.perf_counter(), 0
            while not hook.flush(timeout=0) and steps < 50:
                step()
                steps += 1
            extra.append(time.perf_counter() - start - steps * alone)
            hook.flush()
        largest = max(path.stat().st_size for path in place.glob("timeline-*"))
    return statistics.median(extra) * 1e3, largest


def seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workload", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), metavar="NAME"
    )
    parser.add_argument("--rounds", type=at_least(2), default=20, metavar="N", help="default %(default)s")
    parser.add_argument("--threads", type=at_least(1), default=1, metavar="N", help="of torch, default 1")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    rows, writing = [], []
    for name in options.workload:
        print(f"{name}: {options.rounds} rounds of {len(VARIANTS)} variants", file=sys.stderr)
        times = measure(WORKLOADS[name](), list(VARIANTS), options.rounds)
        rows += [make_row(name, options.threads, variant, times) for variant in VARIANTS]
        for memory in (False, True):
            extra, size = measure_writing(WORKLOADS[name](), memory, max(options.rounds // 4, 2))
            kind = "times and memory" if memory else "times"
            writing.append(f"{name:8}  {kind:16}  {extra:8.0f} ms  {size / 1e6:8.2f} MB")
    print(format_table(rows))
    print(f"\n{'workload':8}  {'trace of':16}  {'written in':>11}  {'size':>11}")
    print("\n".join(writing))


if __name__ == "__main__":
    main()
