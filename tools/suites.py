"""Other projects' test suites, plain and watched: every test must end in the same way.

    python tools/suites.py                                     all suites below
    python tools/suites.py einops timm --interceptor dispatch  some of them, with tensortap's other interceptor
    python tools/suites.py nflows==0.14 -- tests/transforms    another project, with arguments for pytest

The source distribution of a project comes from the package index and is unpacked into a directory (`--work`), with
an environment on top of the one this is started from: what the project needs besides is installed there, and torch
is never replaced. Then `python -m pytest` and `python -m tensortap run -m pytest` are compared: the outcome of every
test, the exit code, whether pytest's report shows something of tensortap, time, memory and what is left on disk. If
tests differ, there is another plain run: one that does not even agree with itself is called unsteady.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SHOWN = 20

SOURCES = Path(__file__).resolve().parents[1] / "src"


@dataclass(frozen=True)
class Suite:
    """A project with tests.

    Attributes:
        requirement: what pip is asked for, with a version.
        arguments: for pytest, from the directory of the source distribution.
        needs: further packages that the tests import.
        environment: variables that the tests want, as NAME=VALUE.
    """

    requirement: str
    arguments: Sequence[str]
    needs: Sequence[str] = ()
    environment: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The project's name alone."""
        return self.requirement.partition("==")[0]


SUITES = [
    Suite("einops==0.8.2", ["einops/tests"], environment=["EINOPS_TEST_BACKENDS=numpy,torch"]),
    Suite(
        "pytorch_optimizer==4.1.0",
        [
            *("-o", "addopts="),  # its options ask for a plugin that measures coverage
            *("tests/test_wrapper_optimizers.py", "tests/test_lr_schedulers.py", "tests/test_gradients.py"),
            *("tests/test_loss_functions.py", "tests/test_base.py"),
        ],
    ),
    Suite(
        "gpytorch==1.15.2", ["test/examples/test_simple_gp_regression.py", "test/kernels", "test/likelihoods"]
    ),
    Suite("e3nn==0.6.0", ["tests/nn"]),
]


@dataclass(frozen=True)
class Outcome:
    """How one run of a suite went.

    Attributes:
        tests: name and outcome of each test; parametrized tests may share a name.
        code: exit code, or None if it took too long.
        seconds: of processor time, which a busy machine changes less than the clock's.
        elapsed: seconds from start to end of the process.
        memory: its largest resident size, in bytes.
        report: what it printed on standard output.
        said: what it printed on standard error.
    """

    tests: Counter[tuple[str, str]]
    code: int | None
    seconds: float
    elapsed: float
    memory: int
    report: str
    said: str

    def __str__(self) -> str:
        """What it came to, in one line."""
        end = "took too long" if self.code is None else f"exit code {self.code}"
        times = f"{self.seconds:.0f} s of processor time in {self.elapsed:.0f} s"
        return f"{self.counts()}; {end}; {times}; {self.memory / 1e6:.0f} MB"

    def counts(self) -> str:
        """How many tests ended how.

        >>> Outcome(Counter({("a", "passed"): 2, ("b", "skipped"): 1}), 0, 1.0, 1.0, 1, "", "").counts()
        '2 passed, 1 skipped'
        """
        ends: Counter[str] = Counter()
        for (_, end), number in self.tests.items():
            ends[end] += number
        return ", ".join(f"{ends[end]} {end}" for end in sorted(ends)) or "no test"


class Place:
    """The directory of one project: its sources and its environment.

    Args:
        suite: the project.
        work: where directories of projects are.
    """

    def __init__(self, suite: Suite, work: Path) -> None:
        self.suite = suite
        self.root = work / re.sub(r"\W+", "-", suite.requirement)
        self.python = self.root / "venv" / "bin" / "python"

    def prepare(self) -> None:
        """Fetch, unpack and install what is not there yet."""
        done = self.root / "done"
        if done.exists():
            return
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", str(self.root / "venv")], check=True)
        [own] = (self.root / "venv" / "lib").glob("python*/site-packages")
        below = [str(SOURCES), *site.getsitepackages()]
        (own / "below.pth").write_text("\n".join(below) + "\n")
        import torch

        constraint = self.root / "constraint.txt"
        constraint.write_text(f"torch=={torch.__version__}\n")
        self._pip(
            "download",
            "--no-deps",
            "--no-binary",
            self.suite.name,
            "-d",
            str(self.root),
            self.suite.requirement,
        )
        self._pip("install", "-c", str(constraint), "pytest", self.suite.requirement, *self.suite.needs)
        [archive] = self.root.glob("*.tar.gz")
        with tarfile.open(archive) as sources:
            sources.extractall(self.root / "sources", filter="data")
        done.touch()

    @property
    def sources(self) -> Path:
        """The unpacked distribution."""
        [directory] = (self.root / "sources").iterdir()
        return directory

    def _pip(self, *arguments: str) -> None:
        subprocess.run([str(self.python), "-m", "pip", "-q", *arguments], check=True)

    def run(self, prefix: Sequence[str], timeout: float) -> Outcome:
        """Run the tests, with something between python and pytest."""
        with tempfile.TemporaryDirectory(dir=self.root) as scratch:
            results = Path(scratch) / "results.xml"
            command = [
                str(self.python),
                *prefix,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "-q",
            ]
            command += [f"--junitxml={results}", *self.suite.arguments]
            with open(Path(scratch) / "out", "w+") as out, open(Path(scratch) / "err", "w+") as err:
                begin = time.monotonic()
                environment = os.environ | dict(each.split("=", 1) for each in self.suite.environment)
                process = subprocess.Popen(command, cwd=self.sources, env=environment, stdout=out, stderr=err)
                code, seconds, memory = _end_of(process, begin + timeout)
                elapsed = time.monotonic() - begin
                out.seek(0)
                err.seek(0)
                ends = Counter(_ends(results)) if results.exists() else Counter()
                return Outcome(ends, code, seconds, elapsed, memory, out.read(), err.read())


def _end_of(process: subprocess.Popen[bytes], deadline: float) -> tuple[int | None, float, int]:
    """Exit code, processor time and largest memory of a process, which is ended when its time is over."""
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            return None, float("nan"), 0
        time.sleep(0.05)


def _ends(results: Path) -> Iterator[tuple[str, str]]:
    """Each test of a JUnit file with how it ended."""
    for case in xml.parse(results).iter("testcase"):
        ends = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        yield f"{case.get('classname')}::{case.get('name')}", "+".join(ends) or "passed"


def compare(place: Place, options: argparse.Namespace) -> bool:
    """Run one suite plain and watched, and print what came out; whether everything was the same."""
    plain = place.run([], options.timeout)
    records = place.root / "records"
    shutil.rmtree(records, ignore_errors=True)
    how = ["--interceptor", options.interceptor] if options.interceptor else []
    watched = place.run(["-m", "tensortap", "run", "-o", str(records), *how], options.timeout)
    disk = sum(path.stat().st_size for path in records.rglob("*") if path.is_file())
    names = sorted({name for name, _ in (plain.tests - watched.tests) + (watched.tests - plain.tests)})
    again = place.run([], options.timeout) if names else plain
    steady = [name for name in names if _ends_of(name, plain) == _ends_of(name, again)]

    print(f"{place.suite.requirement}  {' '.join(place.suite.arguments)}")
    print(f"  plain    {plain}")
    ratio = watched.seconds / plain.seconds
    print(f"  watched  {watched}; {ratio:.2f} times the processor time; {disk / 1e6:.1f} MB on disk")
    for name in names[:_SHOWN]:
        kind = "DIFFERS" if name in steady else "unsteady"
        print(f"  {kind}  {name}: plain {_ends_of(name, plain)}, watched {_ends_of(name, watched)}")
    if len(names) > _SHOWN:
        print(f"  and {len(names) - _SHOWN} more")
    for line in _leaks(watched.report, place.root):
        print(f"  SEEN     {line}")
    if options.verbose or steady or watched.code != plain.code:
        print(watched.report[-4000:])
    print("  " + "\n  ".join(watched.said.splitlines()[-options.lines :]), flush=True)
    return not steady and (bool(names) or watched.code == plain.code)


def _ends_of(name: str, outcome: Outcome) -> str:
    return ", ".join(sorted(end for (test, end) in outcome.tests if test == name)) or "missing"


def _leaks(report: str, root: Path) -> list[str]:
    """What pytest has to say of us: a warning of ours, a frame of ours in a traceback."""
    return [line for line in report.splitlines() if "tensortap" in line and str(root) not in line][:_SHOWN]


def main() -> int:
    """Compare the suites that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "suites", nargs="*", metavar="PROJECT[==VERSION]", help="all that are listed in this file"
    )
    parser.add_argument("--needs", nargs="*", default=(), help="further packages that the tests import")
    parser.add_argument("--interceptor", choices=("native", "dispatch"))
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one run of a suite")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "tensortap-suites")
    parser.add_argument("--lines", type=int, default=40, help="how much of what tensortap says is shown")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the end of pytest's report")
    place = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, theirs = parser.parse_args(sys.argv[1:place]), sys.argv[place + 1 :]
    listed = {suite.name: suite for suite in SUITES}
    if theirs:
        [requirement] = options.suites
        suites = [Suite(requirement, theirs, options.needs)]
    else:
        suites = [listed[name] for name in options.suites or listed]
    same = True
    for suite in suites:
        place = Place(suite, options.work.resolve())
        place.prepare()
        same &= compare(place, options)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
