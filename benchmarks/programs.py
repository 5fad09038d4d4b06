"""Measures what `tensortap run` costs on whole programs, those of `program_zoo.py`.

    python benchmarks/programs.py mlp --rounds 3

A program runs in two processes at once, started by `python` and by `tensortap run`, which take turns: while one
executes a block of steps, the other waits. So the plain one is not touched by us in any way, and both see the same
moods of the machine. A round is a block of each; the ratio of a round is that of the times of its blocks. The table
gives the median of the rounds and their quartiles. `cpu` is the processor time of all threads, those that write records
included, which the time of a step does not show on a machine with an idle core; `thread` that of the thread that
trains, which a busy machine disturbs least.

Before the first round both execute blocks until the watched one has settled: for some seconds at least, and until its
blocks do not get cheaper any more. `settled after` says how many seconds of the watched program that were, and `extra`
how much more processor time it took in them than if it had been settled from its first step: learning the program,
writing the first runs, looking at them.

`--floor` adds two more processes, in which PyTorch tells an observer that does nothing of every operator (`floors.py`):
what a program costs above `kernel` is ours, and no observer by RecordFunction could cost less than `recording`.

`--whole` adds the time of the whole program, from the start of the process to its end, in each of the two ways in turn.
Programs of two ranks are started by torchrun, and rank 0 is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from floors import WAYS
from program_zoo import PROGRAMS, RANKS, STEPS

ZOO = str(Path(__file__).with_name("program_zoo.py"))
BLOCK_SECS = 1.0
FIRST = 0.1
"""Of the steps of a program, how many are executed before anything is compared; they say how long one takes."""

SETTLES_SECS = 5.0, 30.0
"""How long a program is watched before the first round, at least and at most."""

CHEAPER = 0.98
"""A block that takes less than this of the cheapest before it shows that the program has not settled yet."""


@dataclass
class Program:
    """A running program that executes steps when told to, on all of its ranks."""

    process: subprocess.Popen[bytes]
    commands: list[TextIO] = field(default_factory=list)
    answers: list[TextIO] = field(default_factory=list)

    def run(self, steps: int) -> dict[str, Any]:
        """What rank 0 says of these steps."""
        return self.run_ranks(steps)[0]

    def run_ranks(self, steps: int) -> list[dict[str, Any]]:
        for each in self.commands:
            print(steps, file=each, flush=True)
        lines = [each.readline() for each in self.answers]
        if not all(lines):
            raise SystemExit(f"the program ended with exit code {self.process.wait(60)}")
        return [json.loads(line) for line in lines]


def command_of(
    name: str,
    watch: Sequence[str] | None,
    directory: Path,
    *arguments: str,
    script: str = ZOO,
    ranks: int = 0,
) -> list[str]:
    """How to start a program; `watch` are options of `tensortap run`, None for a plain one."""
    ranks = ranks or RANKS.get(name, 0)
    starter = []
    if watch is not None:
        starter = ["-m", "tensortap", "run", "-q", "-o", str(directory / "runs"), *watch]
    if ranks:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return [sys.executable, *launcher, *starter, script, name, *arguments]
    return [sys.executable, *starter, script, name, *arguments]


@contextmanager
def started(
    name: str, watch: Sequence[str] | None, script: str = ZOO, ranks: int = 0, arguments: Sequence[str] = ()
) -> Iterator[Program]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        directory = Path(made)
        pipes = [
            directory / f"{kind}{rank}" for kind in ("c", "a") for rank in range(ranks or RANKS.get(name, 1))
        ]
        for pipe in pipes:
            os.mkfifo(pipe)
        said = ["--pipes", str(directory / "c"), str(directory / "a"), *arguments]
        command = command_of(name, watch, directory, *said, script=script, ranks=ranks)
        process = subprocess.Popen(command, env=_environment())
        program = Program(process)
        try:
            for pipe in pipes:
                if pipe.name.startswith("c"):
                    program.commands.append(pipe.open("w"))
                else:
                    program.answers.append(pipe.open())
            yield program
        finally:
            for each in (*program.commands, *program.answers):
                each.close()
            try:
                process.wait(60)
            finally:
                process.kill()


def settled(name: str, rounds: int, watch: Sequence[str], floor: bool) -> dict[str, Any]:
    """Ratios of watched to plain steps, round by round, and of steps that are observed for nothing."""
    with ExitStack() as running:
        programs = {
            "plain": running.enter_context(started(name, None)),
            "watched": running.enter_context(started(name, watch)),
        }
        for way in WAYS if floor else ():
            programs[way] = running.enter_context(started(name, None, arguments=["--floor", way]))
        block, before = settle(name, programs)
        ms: dict[str, list[float]] = {kind: [] for kind in programs}
        cpu: dict[str, list[float]] = {kind: [] for kind in programs}
        thread: dict[str, list[float]] = {kind: [] for kind in programs}
        for number in range(rounds):
            for kind in list(programs) if number % 2 == 0 else reversed(programs):
                told = programs[kind].run(block)
                ms[kind].append(statistics.mean(told["walls"]) * 1e3)
                cpu[kind].append(told["cpu"])
                thread[kind].append(told["thread"])
    ratios = [mine / theirs for mine, theirs in zip(ms["watched"], ms["plain"], strict=True)]
    found = {
        "plain": statistics.median(ms["plain"]),
        "watched": statistics.median(ms["watched"]),
        "ratio": statistics.median(ratios),
        "quartiles": quartiles(ratios),
    }
    for kind in programs:
        for clock, times in (("cpu", cpu), ("thread", thread)):
            found[f"{kind} {clock}"] = statistics.median(
                mine / theirs for mine, theirs in zip(times[kind], times["plain"], strict=True)
            )
    found["settled after"] = before["watched"]
    found["extra"] = before["watched cpu"] - found["watched cpu"] * before["plain cpu"]
    return found


def settle(name: str, programs: dict[str, Program]) -> tuple[int, dict[str, float]]:
    """Execute steps until the watched program has settled; how many make a block, and what each took."""
    first = {kind: each.run(max(3, int(STEPS[name] * FIRST))) for kind, each in programs.items()}
    block = max(3, min(1000, int(BLOCK_SECS / statistics.median(first["plain"]["walls"]))))
    took = {kind: 0.0 for each in programs for kind in (each, f"{each} cpu")}
    _add(took, first)
    cheapest, least, most = float("inf"), *SETTLES_SECS
    while took["watched"] < most:
        told = {kind: each.run(block) for kind, each in programs.items()}
        _add(took, told)
        is_cheaper = told["watched"]["cpu"] < CHEAPER * cheapest
        cheapest = min(cheapest, told["watched"]["cpu"])
        if took["watched"] >= least and not is_cheaper:
            break
    return block, took


def _add(took: dict[str, float], told: dict[str, dict[str, Any]]) -> None:
    for kind, each in told.items():
        took[kind] += sum(each["walls"])
        took[f"{kind} cpu"] += each["cpu"]


def whole(name: str, rounds: int, watch: Sequence[str]) -> dict[str, Any]:
    """Seconds that the whole program takes, and what a watched one leaves on the disk."""
    times: dict[bool, list[float]] = {False: [], True: []}
    nbytes = 0
    for number in range(2 * rounds):
        is_watched = number % 2 == 1
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
            began = time.perf_counter()
            command = command_of(name, watch if is_watched else None, Path(made))
            subprocess.run(command, check=True, env=_environment())
            times[is_watched].append(time.perf_counter() - began)
            if is_watched:
                nbytes = sum(each.stat().st_size for each in Path(made).rglob("*") if each.is_file())
    seconds = {kind: statistics.median(each) for kind, each in times.items()}
    return {"plain": seconds[False], "watched": seconds[True], "megabytes": nbytes / 1e6}


def quartiles(ratios: list[float]) -> tuple[float, float]:
    if len(ratios) < 2:
        return ratios[0], ratios[0]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, high


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", choices=[*PROGRAMS, []], help="all of them by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--floor", action="store_true", help="measure the least that an observer costs, too")
    parser.add_argument("--whole", action="store_true", help="measure whole programs, too")
    parser.add_argument(
        "--options", default="", help="further options of `tensortap run`, as in '--budget 1.1'"
    )
    options = parser.parse_args()
    watch = options.options.split()
    columns = (
        "program     plain, ms  watched, ms  ratio    quartiles    cpu thread  settled after, s  extra, s"
    )
    columns += "".join(f"  {way}, thread" for way in WAYS) if options.floor else ""
    print(columns + ("   whole, s  watched, s  ratio      MB" if options.whole else ""))
    for name in options.programs or PROGRAMS:
        found = settled(name, options.rounds, watch, options.floor)
        low, high = found["quartiles"]
        line = f"{name:10} {found['plain']:10.2f} {found['watched']:12.2f} {found['ratio']:6.2f}"
        line += f"    {low:.2f}–{high:.2f} {found['watched cpu']:6.2f} {found['watched thread']:6.2f}"
        line += f" {found['settled after']:17.1f} {found['extra']:9.1f}"
        if options.floor:
            line += "".join(f"  {found[f'{way} thread']:{len(way) + 8}.2f}" for way in WAYS)
        if options.whole:
            total = whole(name, max(1, options.rounds // 3), watch)
            ratio = total["watched"] / total["plain"]
            line += f" {total['plain']:10.1f} {total['watched']:11.1f} {ratio:6.2f} {total['megabytes']:7.1f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
