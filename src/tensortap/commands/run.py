"""`tensortap run`: a training program, unchanged, with everything in it watched."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tensortap.errors import UsageError

if TYPE_CHECKING:
    from tensortap.launch.script import Script

HELP = "run a program and say which operation made its first bad value"
DESCRIPTION = """Run a program as python would, and watch the health of every tensor in it.

The moment a value turns NaN or infinite, and is not meant to be, the answer is
printed: which operation made it, in which module, on which line, at which step
and from which inputs. What is silently wrong (`tensortap check`) is said as soon
as it is sure. The program goes on. It needs no change: its models and
optimizers are found, and each optimizer step ends a run. What is recorded goes
to a directory for the other commands. We speak on standard error; arguments,
output, signals and exit code of the program stay its own.

  tensortap run train.py --lr 0.1               the health of everything
  tensortap run -m my.package.train             as python -m does
  tensortap run --stop train.py                 end it at the first bad value
  tensortap run --skip-bad train.py             leave out updates with bad gradients
  tensortap run --steps 100:120 --values train.py
                                                whole values of these steps
  tensortap run --watch attn --dtype bfloat16 train.py
                                                only these tensors
  tensortap run --filter 'max > 1e4' train.py   what first exceeds a limit
  tensortap run --ring 3 train.py               all values of the 3 runs before
  tensortap run --budget 1.1 train.py           at a tenth of its time, at most
  tensortap run --no-check train.py             say nothing of silent mistakes
  tensortap run --stream localhost:6064 train.py
                                                look at it while it runs
  torchrun --nproc-per-node 2 -m tensortap run train.py
                                                all ranks, one answer
"""

_STEPS = re.compile(r"(\d*)(:)?(\d*)(?::(\d+))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.usage = "tensortap run [options] PROGRAM [ARGUMENT ...]"
    which = parser.add_argument_group("the program")
    which.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM ...",
        help="a script or command, and its arguments",
    )
    which.add_argument(
        "-m", dest="module_and_arguments", nargs=argparse.REMAINDER, metavar="MODULE ...", help="run a module"
    )
    which.add_argument(
        "-c", dest="code_and_arguments", nargs=argparse.REMAINDER, metavar="CODE ...", help="run code"
    )
    what = parser.add_argument_group("what is watched")
    what.add_argument("--watch", metavar="REGEX", help="only tensors of nodes whose name contains this")
    what.add_argument("--op", metavar="REGEX", help="only outputs of operations such as aten::softmax")
    what.add_argument("--dtype", metavar="REGEX", help="only tensors of dtypes such as float16")
    what.add_argument(
        "--steps", type=_steps, metavar="A:B", help="only these steps, as in 5, 100:200 or 0:100:10"
    )
    what.add_argument("--every", type=_positive, metavar="N", help="only every N-th run")
    what.add_argument(
        "--budget",
        type=_ratio,
        metavar="RATIO",
        help="only so many runs that the program takes about RATIO times as long, as in 1.1",
    )
    what.add_argument("--values", action="store_true", help="record whole values, too, and keep every run")
    what.add_argument(
        "--ring",
        type=_positive,
        metavar="K",
        help="hold all values of the last K runs; keep them when a value is bad",
    )
    bad = parser.add_argument_group("what is bad")
    bad.add_argument(
        "-x",
        "--exclude",
        action="append",
        default=[],
        metavar="REGEX|KIND:SUBJECT",
        help="nodes in whose name this is found are never bad; a finding of this kind is not told",
    )
    bad.add_argument(
        "-f", "--filter", metavar="CONDITION", help="instead of NaN and infinities, as for tensortap why"
    )
    how = parser.add_argument_group("how")
    end = how.add_mutually_exclusive_group()
    end.add_argument(
        "--stop",
        action="store_true",
        help="end the program at the first bad value, before an optimizer applies it, with exit code 1",
    )
    end.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out updates whose gradients hold NaN or infinities, and go on",
    )
    how.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="a new directory; tensortap-runs/<time> by default"
    )
    how.add_argument(
        "--stream",
        metavar="HOST:PORT",
        help="send the health of everything, and values that are kept, to tensortap serve, too",
    )
    how.add_argument("--token", help="that the server wants; or the environment variable TENSORTAP_TOKEN")
    how.add_argument(
        "--tls-ca",
        type=Path,
        metavar="FILE",
        help="certificates to trust, in PEM form: the server speaks TLS",
    )
    how.add_argument(
        "--profile", action="store_true", help="write timelines of steps 10, 20, … 100 into DIR/timelines"
    )
    how.add_argument(
        "--profile-every", type=_positive, metavar="N", help="write a timeline of every N-th step there"
    )
    how.add_argument(
        "--interceptor",
        choices=("auto", "native", "dispatch"),
        help="what observes PyTorch; native by default, where a C++ compiler is to be had",
    )
    how.add_argument(
        "--fsync",
        action="store_true",
        help="have every kept run on the disk itself at its end: it then outlives a power failure, too",
    )
    how.add_argument(
        "--no-check", action="store_true", help="do not look for what is silently wrong in updates"
    )
    how.add_argument(
        "--no-compare",
        action="store_true",
        help="do not take checksums by which the ranks of a job are compared",
    )
    how.add_argument(
        "--no-copies",
        action="store_true",
        help="of JAX's donated arguments; a step that turns bad is told then, but not the operation in it",
    )
    how.add_argument("-q", "--quiet", action="store_true", help="say nothing unless a value turns bad")


def run(options: argparse.Namespace) -> Callable[[], int]:
    """Prepare the program; what is returned executes it, when nothing of ours stands around it any more."""
    from tensortap.commands.common import checked_regex
    from tensortap.commands.following import Following, executed
    from tensortap.commands.run_options import exclusions, words_of
    from tensortap.launch.job import Job, terminal
    from tensortap.launch.ranks import Voice, default_root

    program = _program(options).found()
    program.check()
    root = Path(os.path.abspath(options.output.expanduser() if options.output else default_root()))
    exclude, _ = exclusions(options, program.words)
    for regex in (options.watch, options.op, options.dtype, exclude):
        checked_regex(regex)
    voice = Voice.of_this_process(root)
    job = Job(
        str(root),
        voice.name,
        words_of(options),
        program.label,
        program.words,
        head=os.getpid(),
        stream=voice.job_name,
        terminal=terminal(),
    )
    return partial(executed, Following(options, job, voice), program.execute)


def _program(options: argparse.Namespace) -> Script:
    from tensortap.launch.script import Script

    if options.module_and_arguments:
        return Script("module", options.module_and_arguments[0], options.module_and_arguments[1:])
    if options.code_and_arguments:
        return Script("code", options.code_and_arguments[0], options.code_and_arguments[1:])
    if options.program:
        return Script("script", options.program[0], options.program[1:])
    raise UsageError("Which program? Name a script, -m MODULE or -c CODE; see tensortap run --help.")


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 1 < ratio < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no ratio above 1, such as 1.1")
    return ratio


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def _steps(text: str) -> range:
    """`5`, `100:200` (the end is not included), `100:` or `0:100:10`."""
    found = _STEPS.fullmatch(text)
    if found is None or not text.strip(":") or (found[4] is not None and int(found[4]) == 0):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no range of steps such as 5, 100:200, 100: or 0:100:10"
        )
    first = int(found[1] or 0)
    if found[2] is None:
        return range(first, first + 1)
    return range(first, int(found[3]) if found[3] else 1 << 62, int(found[4] or 1))
