"""What of a job was seen: which ranks have ended, which go on, hang or were killed, and what nobody watched.

A session in which nothing bad was found is healthy only if all of it was seen.
"""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tensortap.frameworks import ANY_FRAMEWORK
from tensortap.records.task import task_name

__all__ = ["COMPLETE", "Coverage", "Guarded", "RankState"]

_SHOWN = 8
_ERROR_WIDTH = 120
_STILL_SECS = 5.0
"""From when on it is worth a word that a process does not move; it may well be computing."""

_TROUBLE = ("died", "failed", "hangs", "silent", "stopped", "lost", "unfinished")


@dataclass(frozen=True, slots=True)
class RankState:
    """What became of one rank.

    Attributes:
        state: `ended`, `interrupted` (by Ctrl-C), `running`, `failed` (by an exception), `died` (killed, or ended from
            inside without a word), `hangs` (lives, and has not moved for long), `silent` (lives, and none of its
            threads does anything), `stopped` (by a signal), `lost` (on another machine, not heard of for long),
            `unfinished` (its last run has no end, and what wrote it said nothing of itself).
        run, step: the run that it had begun last, -1 before the first.
        node: the operation that was recorded last, empty if it is not known.
        file, line, function: where it was in the program, or is.
        call: what was being executed there, if not the program's own code.
        seen: last sign of life, in seconds since the epoch.
        still_secs: how long it has been there.
        local_rank: its place among the ranks of its machine, -1 if unknown.
        restart: how many times it had been started before.
    """

    rank: int
    state: str
    run: int = -1
    step: int = -1
    node: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    call: str = ""
    error: str = ""
    seen: float = 0.0
    still_secs: float = 0.0
    pid: int = 0
    host: str = ""
    local_rank: int = -1
    restart: int = 0

    @property
    def is_trouble(self) -> bool:
        """Whether it neither has ended nor goes on."""
        return self.state in _TROUBLE

    @property
    def lives(self) -> bool:
        """Whether the process is there, as far as is known."""
        return self.state in ("running", "hangs", "silent", "stopped")

    @property
    def waits(self) -> bool:
        """Whether it is where ranks wait for each other: in a collective, or in a backward pass, which has some."""
        return self.call.startswith("torch.distributed.") or self.call.endswith("._engine_run_backward")

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        parts = []
        if self.run >= 0:
            parts.append(
                f"run {self.run}" + (f" (step {self.step})" if self.step not in (-1, self.run) else "")
            )
        if self.file:
            function = self.function.rpartition("<locals>.")[2]
            parts.append(f"{os.path.basename(self.file)}:{self.line} in {function}")
        if self.call:
            parts.append(f"executing {self.call}")
        if self.node:
            parts.append(f"after {self.node}")
        return ", ".join(parts)

    @property
    def sentence(self) -> str:
        """What became of it and where, without its number."""
        when = datetime.fromtimestamp(self.seen).strftime("%H:%M:%S") if self.seen else ""
        words = {
            "ended": "has ended",
            "running": f"has been at one place for {_duration(self.still_secs)}"
            if self.still_secs >= _STILL_SECS
            else "goes on",
            "interrupted": "was interrupted"
            + (
                f" when it had been at one place for {_duration(self.still_secs)}"
                if self.still_secs >= _STILL_SECS
                else ""
            ),
            "failed": f"ended with {textwrap.shorten(self.error, _ERROR_WIDTH, placeholder=' …')}",
            "died": "did not finish: it was killed, or ended itself without a word"
            + (f", after {when}" if when else ""),
            "hangs": f"does not go on: it has been at one place for {_duration(self.still_secs)}",
            "silent": f"does not go on: none of its threads has done anything for {_duration(self.still_secs)}",
            "stopped": f"is stopped by a signal, for {_duration(self.still_secs)}",
            "unfinished": f"did not finish: it was killed or hangs, and has written nothing since {when}",
            "lost": f"has not been heard of since {when}, on {self.host or 'another machine'}",
        }.get(self.state, self.state)
        place = self.place if self.state != "ended" else ""
        return f"{words}; {self._tense} at {place}" if place else words

    @property
    def _tense(self) -> str:
        return "it is" if self.lives else "it was"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "finished": self.state in ("ended", "interrupted"),
            "text": self.sentence,
        }


@dataclass(frozen=True, slots=True)
class Guarded:
    """How much a rank watched that had to keep to a budget of time; the other runs were only looked at afterwards.

    Attributes:
        budget: the ratio that it was to keep to; `cost` is what it came to.
        watched, guarded: numbers of runs.
        step: in which something was bad that was not watched, -1 if there is none, or nothing counts steps.
        bad: what it was, empty if nothing.

    >>> print(Guarded(0, 1.1, 1.08, 40, 960, 512, "model/weight").sentence)
    Step 512 was not watched, for the sake of a budget of time, and after it model/weight was NaN or infinite.
    """

    rank: int
    budget: float
    cost: float
    watched: int
    guarded: int
    step: int = -1
    bad: str = ""

    @property
    def sentence(self) -> str:
        """What was bad in a run that was not watched; empty if nothing was."""
        if not self.bad:
            return ""
        which = f"Step {self.step}" if self.step >= 0 else "A run"
        return (
            f"{which} was not watched, for the sake of a budget of time, and after it {self.bad} was NaN or "
            "infinite."
        )


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a job a session has seen.

    Attributes:
        ranks: what became of each rank that recorded here, empty if nothing is known.
        world: how many ranks the job has, 1 if nothing is known of others.
        unwatched: how many processes were started by watched ones and not watched.
        trained: how many of them are known to have trained, or to have called a model.
        children: some of them, as numbers of processes.
        guarded: of each rank that did not watch all of its runs, because of a budget of time.
        earlier: what became of ranks before their launcher started them again.

    >>> Coverage().is_complete
    True
    >>> Coverage((RankState(0, "ended"),), world=3).missing
    (1, 2)
    """

    ranks: tuple[RankState, ...] = ()
    world: int = 1
    unwatched: int = 0
    trained: int = 0
    children: tuple[int, ...] = ()
    guarded: tuple[Guarded, ...] = ()
    earlier: tuple[RankState, ...] = ()

    @property
    def unseen_bad(self) -> Guarded | None:
        """The first bad value in a run that was not watched."""
        return min((each for each in self.guarded if each.bad), key=lambda each: each.step, default=None)

    @property
    def guarded_sentence(self) -> str:
        """How many runs were watched, if that is not all; empty otherwise."""
        guarded = sum(each.guarded for each in self.guarded)
        if not guarded:
            return ""
        watched = sum(each.watched for each in self.guarded)
        cost = max(each.cost for each in self.guarded)
        return (
            f"{watched:,} of {watched + guarded:,} runs were watched, to keep to a budget of time "
            f"({self.guarded[0].budget:g}; it came to {cost:.2f}). In the others only updates were looked at, and what "
            "models returned without gradients."
        )

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job that recorded nothing here."""
        here = {each.rank for each in self.ranks}
        return tuple(rank for rank in range(self.world) if rank not in here) if here else ()

    @property
    def troubled(self) -> tuple[RankState, ...]:
        """The ranks that neither have ended nor go on, the one that stood still first before the others."""
        # What ended without a word comes before what an error of its own told, which may be the consequence; so may
        # be the end of one that waited for others, whom a launcher kills.
        return tuple(
            sorted(
                (each for each in self.ranks if each.is_trouble),
                key=lambda each: (
                    each.state == "failed",
                    (each.waits, each.waits and each.lives),
                    each.seen - each.still_secs,
                    each.rank,
                ),
            )
        )

    @property
    def running(self) -> tuple[RankState, ...]:
        """The ranks that go on."""
        return tuple(each for each in self.ranks if each.state == "running")

    @property
    def is_complete(self) -> bool:
        """Whether everything was seen, so far, and nothing stands still."""
        return not (self.missing or self.troubled or self.unwatched or self.unseen_bad)

    @property
    def unwatched_sentence(self) -> str:
        """What is known of children that were not watched; empty if there are none."""
        if not self.unwatched:
            return ""
        what = "trained" if self.trained == self.unwatched else f"used {ANY_FRAMEWORK} and may have trained"
        which = f" ({_listed('process', self.children)})" if self.children else ""
        return (
            f"{_many(self.unwatched, 'child process', 'child processes')}{which} {what}, and "
            f"{'was' if self.unwatched == 1 else 'were'} not watched."
        )

    @property
    def missing_sentence(self) -> str:
        """Which ranks recorded nothing here; empty if none."""
        if not self.missing:
            return ""
        return (
            f"{_listed('Rank', self.missing)} of {self.world} {'was' if len(self.missing) == 1 else 'were'} not "
            "watched here."
        )

    @property
    def absent_sentence(self) -> str:
        """Which ranks others wait for, if ranks stand still; empty if that is not known."""
        still = [each for each in self.troubled if each.lives]
        waiting = [each for each in still if each.waits]
        absent = [each for each in self.troubled if each.state != "failed" and each not in waiting]
        absent, waiting = _apart(absent, waiting)
        if not absent or not waiting:
            return ""
        late, where = _named_ranks("Rank", absent), _named_ranks("rank", waiting)
        return (
            f"{late} {'has' if len(absent) == 1 else 'have'} not arrived where {where} "
            f"{'waits' if len(waiting) == 1 else 'wait'}: {waiting[0].place}."
        )

    @property
    def hang_sentences(self) -> tuple[str, ...]:
        """Of a job that stood still when it was interrupted, who had not arrived, and where all of them were."""
        stood = [
            each for each in self.ranks if each.state == "interrupted" and each.still_secs >= _STILL_SECS
        ]
        if not stood:
            return ()
        # Those who wait inside PyTorch may not hear of an interrupt, and be killed.
        killed = [each for each in self.ranks if each.state in ("died", "failed") and each.waits]
        waiting = [*(each for each in stood if each.waits), *killed]
        absent, waiting = _apart([each for each in stood if not each.waits], waiting)
        told = []
        if absent and waiting:
            late, where = _named_ranks("Rank", absent), _named_ranks("rank", waiting)
            told.append(f"{late} had not arrived where {where} waited: {waiting[0].place}.")
        return (*told, *map(self._named, stood[:_SHOWN]))

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that is not as it should be."""
        told = [
            *filter(None, [self.absent_sentence]),
            *(self._named(each) for each in self.troubled[:_SHOWN]),
        ]
        if len(self.troubled) > _SHOWN:
            told.append(f"So it is with {len(self.troubled) - _SHOWN} more ranks.")
        return (*told, *filter(None, (self.missing_sentence, self.unwatched_sentence)))

    @property
    def waiting(self) -> tuple[str, ...]:
        """Of ranks that go on, where they are if they have been there for a while."""
        still = [each for each in self.running if each.still_secs >= _STILL_SECS]
        return tuple(map(self._named, still[:_SHOWN]))

    @property
    def restarts(self) -> tuple[str, ...]:
        """Of ranks that were started again, what became of them before."""
        told = [
            f"{task_name(each.rank).capitalize()} was started again: its attempt {each.restart + 1} {each.sentence}."
            for each in self.earlier[:_SHOWN]
        ]
        if len(self.earlier) > _SHOWN:
            told.append(f"There were {len(self.earlier) - _SHOWN} more attempts.")
        return tuple(told)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What else is worth a word: what is bad although nobody watched, what may yet go on, what was only guarded."""
        bad = "" if self.unseen_bad is None else self.unseen_bad.sentence
        told = (bad, *self.hang_sentences, *self.waiting, self.guarded_sentence, *self.restarts)
        return tuple(filter(None, told))

    def _named(self, state: RankState) -> str:
        alone = len(self.ranks) == 1 and self.world == 1
        return f"{'The program' if alone else task_name(state.rank).capitalize()} {state.sentence}."

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "complete": self.is_complete,
            "world_size": self.world,
            "ranks": [each.as_dict() for each in self.ranks],
            "unfinished": [each.rank for each in self.troubled],
            "running": [each.rank for each in self.running],
            "not_watched": list(self.missing),
            "unwatched_children": self.unwatched,
            "earlier_attempts": [each.as_dict() for each in self.earlier],
            "guarded": [{name: getattr(each, name) for name in each.__slots__} for each in self.guarded],
            "text": [*self.sentences, *self.remarks],
        }


COMPLETE = Coverage()
"""Of a session of which nothing else is known."""


def _many(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _apart(absent: list[RankState], waiting: list[RankState]) -> tuple[list[RankState], list[RankState]]:
    """Who has not arrived, and who waits, if that is not the same place for all who wait."""
    if not absent and waiting:
        first = min(each.run for each in waiting)
        ahead = [each for each in waiting if each.run != first]
        # In one step, the few who wait in another call, such as for a message that nobody sends.
        call, count = Counter(each.call for each in waiting).most_common(1)[0]
        if not ahead and count * 2 > len(waiting):
            ahead = [each for each in waiting if each.call == call]
        return [each for each in waiting if each not in ahead], ahead
    return absent, waiting


def _named_ranks(what: str, states: Sequence[RankState]) -> str:
    return _listed(what, [each.rank for each in states])


def _listed(what: str, numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2 and 3`, `ranks 1, 2, … (12 in all)`.

    >>> _listed("rank", [3]), _listed("process", [1, 2])
    ('rank 3', 'processes 1 and 2')
    """
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    many = f"{what}{'es' if what.endswith('s') else 's'}"
    texts = [str(each) for each in numbers]
    if len(texts) > _SHOWN:
        return f"{many} {', '.join(texts[: _SHOWN - 1])}, … ({len(texts)} in all)"
    return f"{many} {', '.join(texts[:-1])} and {texts[-1]}"


def _duration(seconds: float) -> str:
    """A time as people say it.

    >>> _duration(3), _duration(300), _duration(9000)
    ('3 s', '5 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
