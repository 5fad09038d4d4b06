"""What to say of processes that a watched program starts and that are not watched, and what to type instead."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from tensortap.analyze.coverage import Coverage
from tensortap.frameworks import ANY_FRAMEWORK, FRAMEWORKS
from tensortap.store.processes import UnwatchedChild

__all__ = ["advice", "sentence", "summary"]

_LAUNCHERS = {name: command for each in FRAMEWORKS for name, command in each.launchers.items()}

_DOES = {
    "trained": "trains",
    "model": "uses a model",
    "loaded": f"uses {ANY_FRAMEWORK}",
    "maybe": f"may use {ANY_FRAMEWORK}",
}


def sentence(child: UnwatchedChild) -> str:
    """The moment there is one.

    >>> sentence(UnwatchedChild(1234))
    'child process 1234 uses torch... and is not watched'
    """
    return f"child process {child.pid} {_DOES[child.evidence]} and is not watched"


def summary(children: Sequence[UnwatchedChild]) -> str:
    """All of them, at the end."""
    known = sum(child.evidence in ("trained", "model") for child in children)
    return Coverage(
        unwatched=len(children), trained=known, children=tuple(child.pid for child in children)
    ).unwatched_sentence


def advice(program: Sequence[str], children: Sequence[UnwatchedChild]) -> tuple[str, str]:
    """What to do, so that they are watched, and what to type; either may be empty.

    Args:
        program: what was typed behind `tensortap run`.
        children: not watched.

    >>> advice(["train.py", "--lr", "1"], [UnwatchedChild(1, "loaded", "multiprocessing")] * 2)
    ('start them from outside the program:', 'torchrun --nproc-per-node 2 -m tensortap run train.py --lr 1')
    >>> child = UnwatchedChild(1, "loaded", "command", "python -u train.py --lr 1")
    >>> advice(["-m", "torch.distributed.run", "--nproc-per-node", "4", "train.py", "--lr", "1"], [child] * 4)
    ('', 'torchrun --nproc-per-node 4 -m tensortap run train.py --lr 1')
    >>> advice(["all.py"], [child])
    ('where the program starts it:', 'python -m tensortap run train.py --lr 1')
    """
    started = next((_program_of(child.command) for child in children if child.started == "command"), None)
    if started is None:
        if len(children) == 1:
            return "train in the program's own process", ""
        return "start them from outside the program:", _started_as_ranks(len(children), program)
    if _path(started) == _path(program):  # the program starts itself again, once for every other rank
        return "", _started_as_ranks(len(children) + 1, program)
    behind = list(program[-len(started) :])
    before = list(program[: -len(started)])
    if behind == started and before:  # a launcher
        launcher = before[1:] if before[0] == "-m" else [os.path.basename(before[0]), *before[1:]]
        launcher[:1] = _LAUNCHERS.get(launcher[0], launcher[0]).split()
        return "", shlex.join([*launcher, "-m", "tensortap", "run", *started])
    return "where the program starts it:", f"python -m tensortap run {shlex.join(started)}"


def _started_as_ranks(ranks: int, program: Sequence[str]) -> str:
    return FRAMEWORKS[0].start_ranks.format(ranks=ranks, program=shlex.join(program))


def _program_of(command: str) -> list[str]:
    """A command line without the interpreter and its flags."""
    try:
        words = shlex.split(command)[1:]
    except ValueError:  # it was too long to be kept whole
        words = command.split()[1:]
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[1:]
    return words


def _path(program: Sequence[str]) -> list[str]:
    return [os.path.abspath(program[0]), *program[1:]] if program and program[0] != "-m" else list(program)
