"""Measures what `tensortap run` costs per step: steps that are watched against steps that are not, in turn.

    tensortap run --quiet --every 2 benchmarks/script.py gpt

Every other run is watched, so the two kinds share one process, one model and the moods of the machine. Prints the
median of both, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from workloads import WORKLOADS

WARM_UP_STEPS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=20, help="for each workload")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("workload  watched, ms  not watched, ms  ratio  steps")
    for name in options.workloads:
        measure(name, options.seconds)


def measure(name: str, seconds: float) -> None:
    workload = WORKLOADS[name]()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 2 * WARM_UP_STEPS:
        began = time.perf_counter()
        workload.step(**workload.batch)
        times.append(time.perf_counter() - began)
    kinds = sorted(
        (statistics.median(times[WARM_UP_STEPS + kind :: 2]) * 1e3 for kind in (0, 1)), reverse=True
    )
    print(f"{name:8}  {kinds[0]:11.2f}  {kinds[1]:15.2f}  {kinds[0] / kinds[1]:5.2f}  {len(times):5}")


if __name__ == "__main__":
    main()
