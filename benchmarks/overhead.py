"""Measures what tensortap costs per training step, as a ratio to the same step without it.

The variants of a workload run in one process on one model: twins would differ by where their memory happens
to lie, which is worth several per cent. A round times one call of every variant, and each round starts with
the next variant in turn, so that drift of the machine (clock, heat, neighbours) hits all of them alike.
'plain' is measured twice, and the second one shows the noise. To add a row, write a factory and put it in
`VARIANTS`.

A second table gives the fixed cost of a run that nobody watches, in microseconds, from a step that does
nothing: it is too small to be seen in the ratios.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import WORKLOADS, Workload

Call = Callable[[], object]
BASELINE = "plain"
# The first calls pay for optimizer state, allocator growth, names and caches; none of it recurs.
WARM_UP_CALLS = 3


# Variants. Each factory gets the workload and returns what a round calls; whatever it opens goes on the stack
# and is closed after the measurement. tensortap is imported inside, so the others run without it.


def plain(workload: Workload, stack: ExitStack) -> Call:
    """The step called directly."""
    return lambda: workload.step(**workload.batch)


def session(workload: Workload, stack: ExitStack) -> Call:
    """The step run through a session, with no hooks."""
    running = open_session(workload, stack)
    return lambda: running.run(None, feed_dict=workload.batch)


def hooks_not_intercepting(workload: Workload, stack: ExitStack) -> Call:
    """A monitored session with hooks that ask for nothing."""
    import tensortap as tt

    class CountingHook(tt.SessionRunHook):
        """Counts runs and asks for nothing."""

        runs = 0

        def before_run(self, run_context: Any) -> None:
            self.runs += 1

    hooks = [tt.StopAtStepHook(last_step=10**12), CountingHook()]
    running = stack.enter_context(tt.MonitoredSession(open_session(workload, stack), hooks=hooks))
    return lambda: running.run(None, feed_dict=workload.batch)


def names_only(workload: Workload, stack: ExitStack) -> Call:
    """Every operation intercepted, named and connected, its values ignored."""
    import tensortap as tt

    running = open_session(workload, stack)
    options = tt.RunOptions(output_partition_graphs=True)
    return lambda: running.run(None, feed_dict=workload.batch, options=options)


def python_tap(workload: Workload, stack: ExitStack) -> Call:
    """Every tensor shown to a Python function that does nothing."""
    import tensortap as tt

    running = open_session(workload, stack)
    options = tt.RunOptions(taps=[lambda node, slot, value: None])
    return lambda: running.run(None, feed_dict=workload.batch, options=options)


def one_tensor(workload: Workload, stack: ExitStack) -> Call:
    """One tensor of the run summarised and dumped."""
    running, _, names = open_dump(workload, stack, "DebugNumericSummary", node_name_regex_allowlist="$^")
    name = next(name for name in names() if "addmm" in name or "linear" in name or "mm" in name)
    running, _, _ = open_dump(workload, stack, "DebugNumericSummary", node_name_regex_allowlist=f"{name}$")
    return lambda: running.run(None, feed_dict=workload.batch)


def health(workload: Workload, stack: ExitStack) -> Call:
    """A numeric summary of every float output: forward, backward, optimizer; dumped."""
    running, _, _ = open_dump(workload, stack, "DebugNumericSummary", **FLOATS)
    return lambda: running.run(None, feed_dict=workload.batch)


def health_by_dispatch(workload: Workload, stack: ExitStack) -> Call:
    """The same with the dispatch mode, where the native interceptor cannot be built."""
    running, _, _ = open_dump(workload, stack, "DebugNumericSummary", "dispatch", **FLOATS)
    return lambda: running.run(None, feed_dict=workload.batch)


def values_drained(workload: Workload, stack: ExitStack) -> Call:
    """Every float output dumped whole, and waited for until it is on disk."""
    running, hook, _ = open_dump(workload, stack, "DebugIdentity", **FLOATS)

    def call() -> object:
        result = running.run(None, feed_dict=workload.batch)
        hook.flush()
        return result

    return call


FLOATS = {"tensor_dtype_regex_allowlist": r"b?float"}


def open_dump(
    workload: Workload, stack: ExitStack, debug_op: str, interceptor: str | None = None, **lists: str
) -> tuple[Any, Any, Any]:
    """A monitored session whose hook dumps to a temporary directory, of which the last run is kept."""
    import tensortap as tt

    root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tensortap-bench-"))) / "dumps"
    hook = tt.DumpingDebugHook(root, watch_fn=lambda fetches, feeds: tt.WatchOptions(debug_op, **lists))
    engine = open_session(workload, stack, interceptor)
    running = stack.enter_context(tt.MonitoredSession(engine, hooks=[hook]))

    def names() -> list[str]:
        metadata = tt.RunMetadata()
        options = tt.RunOptions(output_partition_graphs=True)
        running.run(None, workload.batch, options, metadata, hooks=[])
        return [node.name for node in metadata.nodes]

    stack.callback(CLEANERS.remove, clean := Cleaner(root, hook))
    CLEANERS.append(clean)
    return running, hook, names


class Cleaner:
    """Deletes dumped runs between the rounds, so that the disk does not fill up."""

    def __init__(self, root: Path, hook: Any) -> None:
        self.root, self.hook = root, hook

    def __call__(self) -> None:
        self.hook.flush()
        for run in self.root.glob("run_*"):
            shutil.rmtree(run, ignore_errors=True)


CLEANERS: list[Cleaner] = []


def empty_dispatch_mode(workload: Workload, stack: ExitStack) -> Call:
    """A PyTorch dispatch mode that does nothing: the least that interception from Python can cost."""

    def call() -> object:
        with EmptyMode():
            return workload.step(**workload.batch)

    return call


class EmptyMode(TorchDispatchMode):
    """Passes every operation on."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def open_session(workload: Workload, stack: ExitStack, interceptor: str | None = None) -> Any:
    import tensortap as tt

    return stack.enter_context(
        tt.torch.Session(
            workload.step,
            modules=workload.modules,
            optimizers=workload.optimizers,
            interceptor=interceptor,
        )
    )


VARIANTS: dict[str, Callable[[Workload, ExitStack], Call]] = {
    BASELINE: plain,
    "plain again (noise)": plain,
    "session": session,
    "hooks attached, not intercepting": hooks_not_intercepting,
    "names only": names_only,
    "every tensor to a Python function": python_tap,
    "empty dispatch mode": empty_dispatch_mode,
    "one tensor": one_tensor,
    "health of every tensor": health,
    "health, dispatch mode": health_by_dispatch,
    "every value, drained": values_drained,
}


# Measurement


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        seconds: Median time of a call.
        ratio: Median over the rounds of this call's time to the baseline's in the same round.
        low: Lower quartile of those ratios.
        high: Their upper quartile.
    """

    workload: str
    threads: int
    variant: str
    rounds: int
    seconds: float
    ratio: float
    low: float
    high: float


def measure(workload: str, variants: Sequence[str], threads: int, rounds: int) -> list[Row]:
    """Times the variants against each other, the baseline being one of them."""
    print(f"{workload}, threads {threads}: {rounds} rounds of {len(variants)} variants", file=sys.stderr)
    torch.set_num_threads(threads)
    with ExitStack() as stack:
        made = WORKLOADS[workload]()
        calls = {variant: VARIANTS[variant](made, stack) for variant in variants}
        for call in calls.values():
            for _ in range(WARM_UP_CALLS):
                call()
        times = time_interleaved(calls, rounds)
    return [make_row(workload, threads, variant, times) for variant in variants]


def fixed_costs(calls_each: int = 2000) -> dict[str, float]:
    """Microseconds a run costs by itself, by variant, with a step that does nothing."""
    idle = Workload("idle", lambda x: None, {"model": torch.nn.Linear(2, 2)}, {}, {"x": torch.zeros(1)})
    costs: dict[str, float] = {}
    with ExitStack() as stack:
        for name in (BASELINE, "session", "hooks attached, not intercepting"):
            call = VARIANTS[name](idle, stack)
            call()
            start = time.perf_counter()
            for _ in range(calls_each):
                call()
            costs[name] = (time.perf_counter() - start) / calls_each * 1e6
    return {name: cost - costs[BASELINE] for name, cost in costs.items() if name != BASELINE}


def time_interleaved(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call by variant, in the order of the rounds."""
    order = list(calls)
    times: dict[str, list[float]] = {variant: [] for variant in order}
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for number in range(rounds):
            report_progress(f"  round {number + 1} of {rounds}")
            gc.collect()
            for clean in CLEANERS:
                clean()
            first = number % len(order)
            for variant in order[first:] + order[:first]:
                call = calls[variant]
                start = time.perf_counter()
                call()
                times[variant].append(time.perf_counter() - start)
    finally:
        if was_enabled:
            gc.enable()
        report_progress("")
    return times


def make_row(workload: str, threads: int, variant: str, times: dict[str, list[float]]) -> Row:
    mine = times[variant]
    # Compared within a round, the two calls met the same machine; medians over all rounds may not have.
    ratios = [a / b for a, b in zip(mine, times[BASELINE], strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Row(workload, threads, variant, len(mine), statistics.median(mine), ratio, low, high)


# Output


def report_progress(message: str) -> None:
    """One line on stderr that replaces itself; left out of logs."""
    if sys.stderr.isatty():
        print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)


def format_table(rows: Sequence[Row]) -> str:
    width = max(len(row.variant) for row in rows)
    heading = f"{'workload':8}  threads  {'variant':{width}}  {'ms/step':>8}  ratio  quartiles"
    lines = (
        f"{row.workload:8}  {row.threads:>7}  {row.variant:{width}}  {row.seconds * 1e3:8.2f}"
        f"  {row.ratio:5.2f}  {row.low:.2f}–{row.high:.2f}"
        for row in rows
    )
    return "\n".join([heading, *lines])


def write_json(path: Path, rows: Sequence[Row], fixed: dict[str, float]) -> None:
    document = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "warm_up_calls": WARM_UP_CALLS,
        "rows": [asdict(row) for row in rows],
        "fixed_microseconds": fixed,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def make_parser() -> argparse.ArgumentParser:
    variants = "\n".join(f"  {name:34}{factory.__doc__}" for name, factory in VARIANTS.items())
    parser = argparse.ArgumentParser(
        description="Measure what tensortap costs per training step, as a ratio to the same step without it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"""variants:
{variants}

reading the table:
  ratio      time of the variant to that of '{BASELINE}' in the same round, median of all rounds; 1.00 is free
  quartiles  the middle half of those ratios. When it spans 1.00, or two variants' spans
             overlap, the difference is noise: use more rounds or a quieter machine.

examples:
  python benchmarks/overhead.py                                   everything, a few minutes
  python benchmarks/overhead.py --workload lstm --threads 1       the worst case, a minute
  python benchmarks/overhead.py --variant "empty dispatch mode"   without tensortap
  python benchmarks/overhead.py --rounds 100 --json now.json      to keep
""",
    )
    parser.add_argument(
        "--workload",
        nargs="+",
        choices=list(WORKLOADS),
        default=list(WORKLOADS),
        metavar="NAME",
        help="which training steps: gpt (realistic), mlp (large kernels), lstm (thousands of tiny ops);"
        " default all",
    )
    parser.add_argument(
        "--variant",
        nargs="+",
        choices=list(VARIANTS),
        default=list(VARIANTS),
        metavar="NAME",
        help=f"which rows; '{BASELINE}' is always measured; default all",
    )
    parser.add_argument(
        "--rounds",
        type=at_least(2),
        default=40,
        metavar="N",
        help="timed calls of every variant (default %(default)s); more rounds narrow the noise",
    )
    parser.add_argument(
        "--threads",
        nargs="+",
        type=at_least(1),
        default=[1, 2],
        metavar="N",
        help="sizes of torch's thread pool to measure with (default 1 2)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE, replacing it")
    return parser


def at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < minimum:
            raise argparse.ArgumentTypeError(f"{number} is too small, at least {minimum} is needed")
        return number

    return parse


def main(arguments: Sequence[str] | None = None) -> None:
    options = make_parser().parse_args(arguments)
    variants = [variant for variant in VARIANTS if variant == BASELINE or variant in options.variant]
    rows = [
        row
        for workload in options.workload
        for threads in options.threads
        for row in measure(workload, variants, threads, options.rounds)
    ]
    print(format_table(rows))
    fixed = fixed_costs()
    print("\nfixed cost of a run nobody watches, and as a ratio of the quickest step above")
    quickest = min(row.seconds for row in rows if row.variant == BASELINE)
    for name, cost in fixed.items():
        print(f"  {name:34}{cost:6.1f} µs  {1 + cost / 1e6 / quickest:.4f}")
    if options.json:
        write_json(options.json, rows, fixed)
        print(f"wrote {options.json}", file=sys.stderr)


if __name__ == "__main__":
    main()
