"""Random small programs, each executed by python and by `tensortap run`: is anything different that must not be?

    python tools/soak.py --minutes 30            as many programs as fit, from a new seed
    python tools/soak.py --minutes 30 --seed 7   the same ones again
    python tools/soak.py --only 700012           one file of programs, by its number

The options of `tensortap run` are drawn, too. Compared are standard output (the programs print digests of all their
results and of the random generators), the exit code, what the program says on standard error, files it leaves, time,
processes that stay behind, and the verdict: no alarm for a healthy program, an answer with the right line for a
planted bad value. What fails is kept in a directory with the command that repeats it; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from soak_programs import Drawn, draw_file

CPU_FACTOR, CPU_SECS = 5.0, 8.0
"""A watched program may take so many times the processor time of the plain one, and so much more."""
END_SECS = 2.0
"""How long after the program's own end the process may live, on an idle machine."""
HANG_SECS = 90.0
"""How long a program may take at all, on an idle machine; a watched one ten times its processor time more."""
MEMORY_BYTES = 1 << 30
"""How much more memory a watched program may take."""


@dataclass
class Execution:
    """What one execution of a program did."""

    code: int
    out: str
    err: str
    cpu: float
    peak_bytes: int
    end_secs: float
    files: list[str]
    left_behind: list[str]
    hangs: bool


@dataclass
class Soak:
    """Counts of what was run, and where failures are kept."""

    kept: Path
    started: float = field(default_factory=time.monotonic)
    files: int = 0
    programs: int = 0
    planted: int = 0
    parts: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self, number: int, drawn: Drawn, problems: list[str], cpus: tuple[float, float], end: float
    ) -> None:
        """One more file is done."""
        with self.lock:
            self.files += 1
            self.programs += drawn.source.count("\nshow(") + drawn.source.count("\n    show(")
            self.planted += drawn.expects == "bad"
            self.parts.update(part for parts in drawn.parts for part in parts.split("+"))
            self.ratios.append(cpus[1] / max(cpus[0], 0.01))
            self.ends.append(end)
            self.failures += [(number, problem) for problem in problems]
            for problem in problems:
                print(f"  {number}: {problem}  [{' '.join(drawn.parts)}]", flush=True)
            if self.files % 10 == 0 or problems:
                minutes = (time.monotonic() - self.started) / 60
                print(
                    f"{minutes:5.1f} min  {self.files} files, {self.programs} programs, {len(self.failures)} failures",
                    flush=True,
                )

    def summary(self) -> str:
        """What was run and what was found."""
        kinds = collections.Counter(problem.partition(":")[0] for _, problem in self.failures)
        lines = [
            f"{self.programs} programs in {self.files} files, {self.planted} planted bad values, "
            f"{len(self.parts)} different parts, {(time.monotonic() - self.started) / 60:.1f} min",
        ]
        if self.ratios:
            lines.append(
                f"processor time watched/plain: median {statistics.median(self.ratios):.2f}, "
                f"most {max(self.ratios):.2f}; end of the process after the program's: "
                f"median {statistics.median(self.ends):.2f} s, most {max(self.ends):.2f} s"
            )
        for kind, count in kinds.most_common():
            numbers = sorted({number for number, problem in self.failures if problem.startswith(kind)})
            lines.append(f"{count:4} {kind}: {' '.join(map(str, numbers[:12]))}")
        lines.append(f"failing programs are in {self.kept}" if self.failures else "no differences")
        return "\n".join(lines)


def main() -> int:
    """Run programs until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long")
    parser.add_argument("--programs", type=int, help="stop after so many files of programs")
    parser.add_argument("--seed", type=int, default=random.randrange(1000), help="which programs")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="only these files")
    parser.add_argument("--keep", type=Path, help="where failing programs go")
    parser.add_argument("--show", action="store_true", help="print the programs instead of running them")
    options = parser.parse_args()
    numbers = options.only or range(options.seed * 100_000, (options.seed + 1) * 100_000)
    numbers = list(numbers)[: options.programs]
    if options.show:
        for number in numbers if options.only else numbers[:1]:
            print(draw_file(number).source)
        return 0
    soak = Soak(options.keep or Path(tempfile.gettempdir()) / f"soak-{options.seed}-{os.getpid()}")
    print(f"seed {options.seed}, {options.jobs} at a time, failures go to {soak.kept}", flush=True)
    ends_at = time.monotonic() + options.minutes * 60
    waiting = iter(numbers)

    def work() -> None:
        while options.only or time.monotonic() < ends_at:
            with soak.lock:
                number = next(waiting, None)
            if number is None:
                return
            _compare(number, soak)

    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            for job in [pool.submit(work) for _ in range(options.jobs)]:
                job.result()
    except KeyboardInterrupt:
        ends_at = 0
    print(f"\n{soak.summary()}", flush=True)
    return 1 if soak.failures else 0


def _compare(number: int, soak: Soak) -> None:
    drawn = draw_file(number)
    arguments = _draw_options(number, drawn)
    with tempfile.TemporaryDirectory(prefix=f"soak-{number}-") as place:
        script = Path(place) / "program.py"
        script.write_text(drawn.source)
        watched_command = [
            *(sys.executable, "-m", "tensortap", "run", "-o", f"{place}/records"),
            *arguments,
            str(script),
        ]
        plain = _execute([sys.executable, str(script)], Path(place) / "plain")
        secs = HANG_SECS * _patience() + 10 * plain.cpu
        watched = _execute(watched_command, Path(place) / "watched", secs)
        problems = _differences(drawn, arguments, plain, watched)
        if any(kind in problem for problem in problems for kind in ("stdout", "code", "stderr")):
            again = _execute([sys.executable, str(script)], Path(place) / "again")
            if (again.out, again.code) != (plain.out, plain.code):
                problems = [f"unsteady without us: {problems[0]}"]
        soak.add(number, drawn, problems, (plain.cpu, watched.cpu), watched.end_secs)
        if problems:
            kept = soak.kept / f"{number}-{problems[0].partition(':')[0].replace(' ', '-')}"
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(script, kept)
            (kept / "problems").write_text("\n".join(problems) + "\n")
            for name, execution in (("plain", plain), ("watched", watched)):
                (kept / f"{name}.out").write_text(execution.out)
                (kept / f"{name}.err").write_text(execution.err)
            shown = shlex.join(["tensortap", "run", *arguments, str(kept / "program.py")])
            (kept / "command").write_text(
                f"{shown}\n{shlex.join([sys.executable, *sys.argv[:1], '--only', str(number)])}\n"
            )


def _draw_options(number: int, drawn: Drawn) -> list[str]:
    draw = random.Random(f"options of {number}")
    chosen: list[str] = []

    def perhaps(chance: float, *arguments: str) -> None:
        if draw.random() < chance:
            chosen.extend(arguments)

    perhaps(0.5, "--quiet")
    perhaps(0.35, "--interceptor", draw.choice(["dispatch", "native"]))
    perhaps(0.15, *draw.choice([("--values",), ("--ring", str(draw.randint(1, 4)))]))
    perhaps(0.15, *draw.choice([("--profile",), ("--profile-every", "2")]))
    perhaps(0.05, "--stream", "localhost:9")
    if drawn.expects == "good":
        perhaps(0.1, "--stop")
        perhaps(0.1, "--watch", draw.choice(["linear", "gradients", ".", "model"]))
        perhaps(0.05, "--every", "2")
        perhaps(0.05, "--steps", "1:3")
        perhaps(0.05, "--op", "aten::(mul|add)")
        perhaps(0.05, "--dtype", "float32")
    return chosen


def _execute(command: list[str], place: Path, secs: float = 600.0) -> Execution:
    """One execution in a directory and a session of its own, of which nothing is left afterwards."""
    place.mkdir()
    clock = place.with_suffix(".clock")
    environment = {
        **os.environ,
        "SOAK_CLOCK": str(clock),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONHASHSEED": "0",
    }
    out, err = place.with_suffix(".out"), place.with_suffix(".err")
    with out.open("w") as out_file, err.open("w") as err_file:
        process = subprocess.Popen(
            command,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=err_file,
            start_new_session=True,
        )
    try:
        hangs, status, usage = _waited_for(process.pid, secs)
        ended = time.monotonic()
    finally:
        left_behind = _members(process.pid)
        if left_behind:  # a child that is just ending is none that stays
            time.sleep(1)
            left_behind = _members(process.pid)
        for pid in left_behind:
            _signal(pid, signal.SIGKILL)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Execution(
        process.returncode,
        out.read_text(errors="replace"),
        err.read_text(errors="replace"),
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss << 10,
        ended - float(clock.read_text().split()[0]) if clock.exists() else 0.0,
        sorted(os.listdir(place)),
        list(left_behind.values()),
        hangs,
    )


def _waited_for(pid: int, secs: float) -> tuple[bool, int, object]:
    """Wait for a process; one that takes too long is asked where it is, and ended."""
    deadline, hangs = time.monotonic() + secs, False
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return hangs, status, usage
        if time.monotonic() > deadline:
            _signal(pid, signal.SIGKILL if hangs else signal.SIGABRT)  # it prints its stacks before it dies
            hangs, deadline = True, time.monotonic() + 10
        time.sleep(0.02)


def _members(session: int) -> dict[int, str]:
    """Living processes of a session, with their commands."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found[int(entry)] = Path(f"/proc/{entry}/cmdline").read_text().replace("\0", " ")[:200]
            except (OSError, IndexError, ValueError):
                continue
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _patience() -> float:
    """How much longer than usual things take while others use the machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _differences(drawn: Drawn, arguments: list[str], plain: Execution, watched: Execution) -> list[str]:
    problems = []
    if watched.hangs:
        problems.append("hang: the watched program did not end")
    elif watched.code != plain.code:
        problems.append(f"exit code: {plain.code} became {watched.code}")
    if watched.out != plain.out and not watched.hangs:
        problems.append(f"stdout: {_first_difference(plain.out, watched.out)}")
    if watched.files != plain.files:
        problems.append(f"files: {plain.files} became {watched.files}")
    if watched.left_behind and not plain.left_behind:
        problems.append(f"processes stay behind: {watched.left_behind}")
    problems += _stderr_differences(plain.err, watched.err)
    if watched.cpu > CPU_FACTOR * plain.cpu + CPU_SECS:
        problems.append(f"slow: {plain.cpu:.1f} s became {watched.cpu:.1f} s of processor time")
    if watched.end_secs > plain.end_secs + END_SECS * _patience():
        problems.append(
            f"late: {watched.end_secs:.1f} s after the program's end, {plain.end_secs:.1f} s without us"
        )
    if watched.peak_bytes > plain.peak_bytes + MEMORY_BYTES:
        problems.append(f"memory: {plain.peak_bytes >> 20} MB became {watched.peak_bytes >> 20} MB")
    return problems + _wrong_verdict(drawn, arguments, plain, watched)


def _stderr_differences(plain: str, watched: str) -> list[str]:
    """What the program says must be there in its order; what is there besides must be ours, and no failure of ours."""
    theirs, rest = _normal(plain), []
    position = 0
    for line in _normal(watched):
        if position < len(theirs) and line == theirs[position]:
            position += 1
        else:
            rest.append(line)
    problems = []
    if position < len(theirs):
        problems.append(f"stderr: {theirs[position]!r} is missing")
    odd = [
        line for line in rest if re.search(r"Traceback|Warning|Fatal|^\w*Error|could not|failed|BUG", line)
    ]
    if odd:
        problems.append(f"stderr of ours: {odd[0]!r}")
    return problems


def _normal(text: str) -> list[str]:
    """Lines that can be compared: without addresses, and without frames that depend on whether modules have hooks."""
    text = re.sub(r'  File ".*/torch/nn/modules/module.py", line .*\n(    .*\n)+', "", text)
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Extension modules:")]
    return [re.sub(r"0x[0-9a-f]{6,}", "0x", line) for line in lines]


def _wrong_verdict(drawn: Drawn, arguments: list[str], plain: Execution, watched: Execution) -> list[str]:
    answers = "first bad value" in watched.err
    if drawn.expects == "good":
        sees_all = not {"--watch", "--op", "--dtype"} & set(arguments)
        if answers and sees_all and "finite=False" not in plain.out:
            line = next((line.strip() for line in watched.err.splitlines() if "node  " in line), "")
            return [f"false alarm: {line}"]
        return []
    if plain.code or watched.code or "finite=False" not in plain.out:  # it did not come so far
        return []
    if not answers:
        return ["no answer: a bad value was planted"]
    if drawn.planted_line is not None and f"program.py:{drawn.planted_line} " not in watched.err + " ":
        named = re.search(r"line\s+(\S+)", watched.err)
        return [f"wrong line: planted at {drawn.planted_line}, the answer says {named and named[1]}"]
    return []


def _first_difference(plain: str, watched: str) -> str:
    for one, other in zip(plain.splitlines(), watched.splitlines(), strict=False):
        if one != other:
            return f"{one!r} became {other!r}"
    return f"{len(plain.splitlines())} lines became {len(watched.splitlines())}"


if __name__ == "__main__":
    sys.exit(main())
