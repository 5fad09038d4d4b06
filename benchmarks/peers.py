"""Measures what other tools cost on the `gpt` training step, side by side with tensortap.

Every tool is compared with the same step unwatched, in the same process and interleaved with it, as in
overhead.py: a round times one call of every peer in the process, and each round starts with the next one in
turn. Tools that cannot share a process (they replace functions of the framework, or can be configured only
once, or watch another framework) have one of their own, with its own unwatched step. The tools themselves are
in the folder peers/.

Before it is timed, a peer must show that it works: the records of one step are read back and counted, and so
are the files and bytes it wrote. A peer that is missing or fails keeps its row, which then says why.

A step counts as done when it returns in the first half of the table ('health of everything'), and when its
files are written in the second ('every value dumped'). They are deleted after every step, which is not timed:
most of what a tool writes then never reaches the disk, so a disk that cannot keep up is not in the ratios.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path

from peers import (
    GROUPS,
    Call,
    NotAvailable,
    Peer,
    Watching,
    on_msprobe,
    on_tensorflow,
    on_torch,
    on_torchlens,
)

PEERS: list[Peer] = [*on_torch.PEERS, *on_torchlens.PEERS, *on_msprobe.PEERS, *on_tensorflow.PEERS]
TOOLS = {
    "tensortap": "with each of its interceptors",
    "debugmode": "torch.utils._debug_mode.DebugMode",
    "anomaly": "torch.autograd.detect_anomaly",
    "torchlens": "TorchLens",
    "msprobe": "msprobe, PyPI mindstudio-probe; L1 is the level of API calls, mix adds modules",
    "tfdbg": "TensorFlow 1 debugger: DumpingDebugHook on a MonitoredSession",
    "tfdbg2": "TensorFlow 2 debugger: enable_dump_debug_info on a tf.function",
}
# The first calls pay for optimizer state, traces, allocator growth and caches; none of it recurs.
WARM_UP_CALLS = 3
# Seconds after which a process is given up: to start, and for a round. A round takes 20 s on a busy machine.
START_LIMIT, ROUND_LIMIT = 600, 60


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        seconds: median time of a watched step.
        plain_seconds: median time of the unwatched step in the same process.
        ratio: median over the rounds of the watched to the unwatched time in the same round.
        low: lower quartile of those ratios.
        high: their upper quartile.
        records: tensors or operations recorded in one step, read back from where the tool keeps them.
        files: files written or grown in one step.
        megabytes: how much they grew, in 10⁶ bytes.
        problem: why there are no figures, when there are none.
    """

    tool: str
    version: str
    setting: str
    group: str
    granularity: str
    threads: int
    rounds: int = 0
    seconds: float | None = None
    plain_seconds: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    records: int | None = None
    files: int | None = None
    megabytes: float | None = None
    problem: str = ""


def make_row(peer: Peer, threads: int, problem: str = "") -> Row:
    try:
        version = metadata.version(peer.package)
    except metadata.PackageNotFoundError:
        version = ""
    return Row(peer.tool, version, peer.setting, peer.group, peer.granularity, threads, problem=problem)


# Measurement, inside one process


def measure(peers: Sequence[Peer], threads: int, rounds: int) -> list[Row]:
    """Times peers that share a process against the unwatched step."""
    rows: dict[Peer, Row] = {}
    at_work: dict[Peer, Watching] = {}
    with ExitStack() as stack:
        try:
            step, plain = peers[0].start(threads, stack)
            for _ in range(WARM_UP_CALLS):
                plain()
        except Exception as error:
            return [make_row(peer, threads, explain(error, peer)) for peer in peers]
        for peer in peers:
            try:
                watching = peer.open(step, stack)
                rows[peer] = warm_up(make_row(peer, threads), watching)
                at_work[peer] = watching
            except Exception as error:
                rows[peer] = make_row(peer, threads, explain(error, peer))
        for peer, times in time_interleaved(plain, at_work, rounds).items():
            if isinstance(times, Exception):
                rows[peer] = make_row(peer, threads, explain(times, peer))
            else:
                rows[peer] = add_times(rows[peer], times)
    return [rows[peer] for peer in peers]


def warm_up(row: Row, watching: Watching) -> Row:
    """Makes the first calls, and counts what one of them leaves."""
    run(watching)
    before = list_sizes(watching.folder)
    run(watching)
    after = list_sizes(watching.folder)
    grown = [size - before.get(path, 0) for path, size in after.items() if size > before.get(path, 0)]
    records = watching.count()
    if records == 0:
        raise RuntimeError("it ran, but recorded nothing")
    watching.clean()
    for _ in range(WARM_UP_CALLS - 2):
        run(watching)
        watching.clean()
    if watching.folder is None:
        return replace(row, records=records)
    return replace(row, records=records, files=len(grown), megabytes=sum(grown) / 1e6)


def run(watching: Watching) -> float:
    """Seconds of one watched step."""
    watching.prepare()
    start = time.perf_counter()
    watching.call()
    end = time.perf_counter()
    watching.settle()
    return end - start


def list_sizes(folder: Path | None) -> dict[Path, int]:
    if folder is None:
        return {}
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


# A peer's times and, by the same index, those of the unwatched step in the same rounds.
Times = list[tuple[float, float]]


def time_interleaved(
    plain: Call, at_work: dict[Peer, Watching], rounds: int
) -> dict[Peer, Times | Exception]:
    """Times of every peer, or what it raised; it is then left out of the remaining rounds."""
    results: dict[Peer, Times | Exception] = {peer: [] for peer in at_work}
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for number in range(rounds):
            gc.collect()
            working = [peer for peer in at_work if isinstance(results[peer], list)]
            order: list[Peer | None] = [None, *working]
            first = number % len(order)
            seconds: dict[Peer | None, float] = {}
            for peer in order[first:] + order[:first]:
                if peer is None:
                    seconds[peer] = run(Watching(plain, lambda: None))
                    continue
                try:
                    seconds[peer] = run(at_work[peer])
                    # At once: what the kernel still has to write would disturb whoever comes next.
                    at_work[peer].clean()
                except Exception as error:
                    results[peer] = error
                gc.collect()
            for peer in working:
                times = results[peer]
                if isinstance(times, list):
                    times.append((seconds[peer], seconds[None]))
    finally:
        if was_enabled:
            gc.enable()
    return results


def add_times(row: Row, times: Times) -> Row:
    # Compared within a round, the two calls met the same machine; medians over all rounds may not have.
    low, ratio, high = statistics.quantiles([mine / plain for mine, plain in times], n=4, method="inclusive")
    return replace(
        row,
        rounds=len(times),
        seconds=statistics.median(mine for mine, _ in times),
        plain_seconds=statistics.median(plain for _, plain in times),
        ratio=ratio,
        low=low,
        high=high,
    )


def explain(error: Exception, peer: Peer) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"not installed ({error}): pip install '{peer.install}'"
    first_line = next(iter(str(error).strip().splitlines()), "")
    return first_line if isinstance(error, NotAvailable) else f"failed: {type(error).__name__}: {first_line}"


# Processes


def measure_in_process(process: str, peers: Sequence[Peer], threads: int, rounds: int) -> list[Row]:
    """Runs `measure` in a new process; if that dies, the rows say how."""
    print(f"{process}, threads {threads}: {rounds} rounds of {len(peers) + 1} calls", file=sys.stderr)
    limit = START_LIMIT + ROUND_LIMIT * rounds
    with tempfile.TemporaryDirectory(prefix="peer-bench-") as folder:
        answer, log = Path(folder) / "rows.json", Path(folder) / "log.txt"
        command = [sys.executable, __file__, "--in-process", process, "--json", str(answer)]
        command += [
            "--rounds",
            str(rounds),
            "--threads",
            str(threads),
            "--peer",
            *{peer.tool for peer in peers},
        ]
        # TensorFlow announces itself on stderr; msprobe reports every step on stdout.
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
        try:
            with log.open("w") as output:
                code = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    timeout=limit,
                ).returncode
            end = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        except subprocess.TimeoutExpired:
            end = f"was not done after {limit} s"
        if answer.exists():
            return [Row(**row) for row in json.loads(answer.read_text())]
        said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        problem = f"failed: its process {end}: {said[-1] if said else 'no output'}"
        return [make_row(peer, threads, problem) for peer in peers]


# Output


def format_table(rows: Sequence[Row]) -> str:
    """Columns for a terminal, one block per group."""
    lines = []
    for group, cells in make_cells(rows):
        # A problem, the last cell of its line, runs over the columns it leaves empty.
        whole = [line for line in cells if len(line) == len(HEADING)]
        widths = [max(len(line[column]) for line in whole) for column in range(len(HEADING))]
        for column in range(len(NAME)):
            widths[column] = max(len(line[column]) for line in cells)
        lines.append(f"\n{group}")
        for line in cells:
            padded = (align(text, widths[column], column) for column, text in enumerate(line))
            lines.append("  ".join(padded).rstrip())
    return "\n".join(lines).lstrip("\n")


def format_markdown(rows: Sequence[Row]) -> str:
    lines = []
    for group, (heading, *cells) in make_cells(rows):
        rule = ["---:" if column in NUMBERS else "---" for column in range(len(HEADING))]
        lines += [f"\n{group[0].upper()}{group[1:]}:\n"]
        for line in (heading, rule, *cells):
            empty = [""] * (len(HEADING) - len(line))
            lines.append("| " + " | ".join([*line, *empty]) + " |")
    return "\n".join(lines).lstrip("\n")


NAME = ("tool", "setting", "granularity", "threads")
HEADING = (*NAME, "ms/step", "ratio", "quartiles", "records", "files", "MB")
NUMBERS = (3, 4, 5, 7, 8, 9)


def make_cells(rows: Sequence[Row]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """The text of every cell by group, the heading first."""
    return [
        (group, [HEADING, *(cells_of(row) for row in rows if row.group == group)])
        for group in GROUPS
        if any(row.group == group for row in rows)
    ]


def cells_of(row: Row) -> tuple[str, ...]:
    name = (f"{row.tool} {row.version}".strip(), row.setting, row.granularity, str(row.threads))
    if row.problem:
        return (*name, row.problem)
    return (
        *name,
        f"{row.seconds * 1e3:,.0f}",
        f"{row.ratio:.2f}",
        f"{row.low:.2f}–{row.high:.2f}",
        "" if row.records is None else f"{row.records:,}",
        "" if row.files is None else f"{row.files:,}",
        "" if row.megabytes is None else f"{row.megabytes:,.1f}",
    )


def align(text: str, width: int, column: int) -> str:
    if len(text) > width:
        return text
    return text.rjust(width) if column in NUMBERS else text.ljust(width)


def write_json(path: Path, rows: Sequence[Row]) -> None:
    document = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "workload": "gpt",
        "warm_up_calls": WARM_UP_CALLS,
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


# Command line


def make_parser() -> argparse.ArgumentParser:
    tools = "\n".join(f"  {name:12}{description}" for name, description in TOOLS.items())
    parser = argparse.ArgumentParser(
        description="Measure what other tools cost on the gpt training step, side by side with tensortap.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"""peers:
{tools}

reading the table:
  ratio      time of the watched step to that of the unwatched one in the same round and process, median
  quartiles  the middle half of those ratios; when two peers' overlap, the difference is noise
  records    tensors recorded in one step, read back (DebugMode plain: operations)
  files, MB  written in one step

'health of everything' is timed until the step returns, 'every value dumped' until its files are written.
They go to the temporary folder, 5 GB at most, and are deleted after every step. TMPDIR=/dev/shm leaves the
disk out altogether.

A peer that is not installed says how to install it. To keep a peer in an environment of its own, run it from
there with --peer.

examples:
  python benchmarks/peers.py                                everything, half an hour
  python benchmarks/peers.py --rounds 2                     whether everything works, ten minutes
  python benchmarks/peers.py --peer tensortap debugmode     two of them, a few minutes
  python benchmarks/peers.py --markdown --json peers.json   to keep
""",
    )
    parser.add_argument(
        "--peer",
        nargs="+",
        choices=list(TOOLS),
        default=list(TOOLS),
        metavar="NAME",
        help="which; default all",
    )
    parser.add_argument(
        "--rounds",
        type=at_least(2),
        default=15,
        metavar="N",
        help="timed calls of every peer (default %(default)s); more rounds narrow the noise",
    )
    parser.add_argument(
        "--threads",
        nargs="+",
        type=at_least(1),
        default=[1],
        metavar="N",
        help="sizes of the framework's thread pool to measure with (default 1)",
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE, replacing it")
    parser.add_argument("--in-process", metavar="NAME", help=argparse.SUPPRESS)
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
    chosen = [peer for peer in PEERS if peer.tool in options.peer]
    if options.in_process:
        mine = [peer for peer in chosen if peer.process == options.in_process]
        rows = measure(mine, options.threads[0], options.rounds)
        options.json.write_text(json.dumps([asdict(row) for row in rows]))
        return
    rows = [
        row
        for threads in options.threads
        for process in dict.fromkeys(peer.process for peer in chosen)
        for row in measure_in_process(
            process, [peer for peer in chosen if peer.process == process], threads, options.rounds
        )
    ]
    print(format_markdown(rows) if options.markdown else format_table(rows))
    if options.json:
        write_json(options.json, rows)
        print(f"wrote {options.json}", file=sys.stderr)


if __name__ == "__main__":
    main()
