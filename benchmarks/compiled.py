"""Measures what it costs to watch a compiled program from inside, as a ratio to the same program unwatched.

All variants train the same model, in turn within a round, so that drift of the machine hits them alike:

    compiled            torch.compile with inductor; PyTorch never heard of tensortap
    compiled again      the same, to show the noise
    session             a run of a session that nobody watches
    watched, compiled   numeric summaries of every float tensor, the program compiled with taps
    taps only           the same code, its summaries thrown away
    watched, eager      the same watch with compilation suspended

Model and backward pass are compiled, loss and optimizer are not. Compile times are those of the first call of
each, with empty caches.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch._inductor.utils import fresh_cache
from workloads import WORKLOADS, Workload

import tensortap as tt
from tensortap.engines.torch import compiled
from tensortap.sink.memory import collect
from tensortap.watch.match import watch_run

Call = Callable[[], object]


def variants(workload: Workload) -> dict[str, Call]:
    """What a round calls, the one that compiles without taps first."""
    session = tt.torch.Session(workload.step, modules=workload.modules, optimizers=workload.optimizers)

    def plain() -> object:
        return workload.step(**workload.batch)

    def taps() -> object:
        with torch.compiler.set_stance("default", force_backend=compiled.tapped):
            return workload.step(**workload.batch)

    def watched(eager: bool) -> object:
        options = tt.RunOptions()
        watch_run(
            options, tt.WatchOptions(["DebugNumericSummary"], tensor_dtype_regex_allowlist="b?float"), SINK
        )
        if eager:
            options.taps.append(lambda node, slot, tensor: None)  # needs the tensors themselves
        with collect("seen"):
            return session.run(None, workload.batch, options)

    return {
        "compiled": plain,
        "compiled again": plain,
        "session": lambda: session.run(None, workload.batch),
        "watched, compiled": lambda: watched(eager=False),
        "taps only": taps,
        "watched, eager": lambda: watched(eager=True),
    }


SINK = "memcbk:///seen"


def compile_model(workload: Workload) -> None:
    model = workload.modules["model"]
    model.forward = torch.compile(model.forward, backend=compiled.inductor)  # type: ignore[method-assign]


def measure(name: str, rounds: int) -> None:
    torch._dynamo.reset()
    workload = WORKLOADS[name]()
    compile_model(workload)
    calls = variants(workload)
    first: dict[str, float] = {}
    with fresh_cache():
        for label, call in calls.items():
            first[label] = timed(call)
            timed(call)
    times: dict[str, list[float]] = {label: [] for label in calls}
    order = list(calls)
    for turn in range(rounds):
        for position in range(len(order)):
            label = order[(turn + position) % len(order)]
            times[label].append(timed(calls[label]))
    for label, seconds in times.items():
        ratios = [a / b for a, b in zip(seconds, times["compiled"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        compiling = first[label] - statistics.median(seconds)
        print(
            f"{name:8}  {label:18}  {statistics.median(seconds) * 1e3:7.2f}  "
            f"{statistics.median(ratios):5.2f}  {low:.2f}–{high:.2f}  "
            + (f"{compiling:9.1f}" if compiling > 1 else "        –"),
            flush=True,
        )


def timed(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", default=["mlp", "gpt"], choices=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"torch {torch.__version__}, {arguments.threads} threads, {platform.processor() or platform.machine()}"
    )
    print("workload  variant             ms/step  ratio  quartiles  compiling, s")
    for name in arguments.workloads:
        measure(name, arguments.rounds)


if __name__ == "__main__":
    main()
