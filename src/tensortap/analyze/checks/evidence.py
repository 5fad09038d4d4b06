"""What rules look at: the updates and the kept runs of one task."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tensortap.analyze.facts import RunFacts, facts_of_dump
from tensortap.errors import NotThereError
from tensortap.records import Node, ParameterUpdate, Update
from tensortap.store.description import RUNNING, read_description
from tensortap.store.updates import GrowingUpdates, tasks_with_updates

if TYPE_CHECKING:
    from tensortap.reader import SessionDir

__all__ = ["ENOUGH_BESIDE", "ENOUGH_TENSORS", "Evidence", "RunsNotRead", "evidence_of", "evidence_of_updates"]

T = TypeVar("T")

MOST_RUNS = 24
"""That are looked at of one task: the first ones, and the last."""

ENOUGH_TENSORS, FEW_RUNS = 30_000, 3
"""Of large runs fewer are looked at: no more once they have so many tensors, but so many runs in any case. A program
that repeats itself shows nothing new in the others, and each takes seconds."""

ENOUGH_BESIDE = 6_000
"""The same for a look beside a program, which takes time from it; a whole one follows when it has ended."""


_GRAPHS: weakref.WeakValueDictionary[Any, Mapping[str, Node]] = weakref.WeakValueDictionary()
"""By their digests. A program that repeats itself has one, and runs that are kept in memory share it."""


class RunsNotRead(NotThereError):
    """A rule wants to look at runs, which nobody has read yet."""


class Evidence:
    """The updates and runs of one task, oldest first.

    Args:
        task: its rank.
        updates: that were looked at.
        runs: that were kept and are over; None if they have not been read.

    Attributes:
        asked: what has been looked at of it: `updates`, `runs`.
    """

    def __init__(self, task: int, updates: list[Update], runs: list[RunFacts] | None) -> None:
        self.task = task
        self.asked: set[str] = set()
        self._updates = updates
        self._runs = runs

    @property
    def updates(self) -> list[Update]:
        """The updates that were looked at."""
        self.asked.add("updates")
        return self._updates

    @property
    def runs(self) -> list[RunFacts]:
        """The runs that were kept and are over.

        Raises:
            RunsNotRead: nobody has read them.
        """
        self.asked.add("runs")
        if self._runs is None:
            raise RunsNotRead("The runs have not been read.")
        return self._runs

    @property
    def training_runs(self) -> list[RunFacts]:
        """Those of them in which models were trained."""
        return [run for run in self.runs if run.circumstances.trains]

    @property
    def optimizers(self) -> dict[str, list[Update]]:
        """The updates of each optimizer, by its name."""
        self.asked.add("updates")
        return self._by_optimizer

    @property
    def parameters(self) -> dict[str, list[tuple[Update, ParameterUpdate]]]:
        """What each update meant to each parameter, by its name."""
        self.asked.add("updates")
        return self._by_parameter

    @property
    def steps(self) -> int:
        """How many steps there have been, as far as is known."""
        told = [each.step for each in self.updates]
        if self._runs is not None:
            told += [run.info.global_step for run in self._runs]
        return max(told, default=-1) + 1

    def lacks(self) -> list[str]:
        """What has been asked for and is not there."""
        return [name for name in ("updates", "runs") if name in self.asked and not getattr(self, f"_{name}")]

    @functools.cached_property
    def _by_optimizer(self) -> dict[str, list[Update]]:
        found: dict[str, list[Update]] = {}
        for update in self._updates:
            found.setdefault(update.optimizer, []).append(update)
        return found

    @functools.cached_property
    def _by_parameter(self) -> dict[str, list[tuple[Update, ParameterUpdate]]]:
        found: dict[str, list[tuple[Update, ParameterUpdate]]] = {}
        for update in self._updates:
            for parameter in update.parameters:
                found.setdefault(parameter.name, []).append((update, parameter))
        return found


def evidence_of_updates(updates: GrowingUpdates) -> Iterator[Evidence]:
    """The evidence of each task of a session before any of its runs has been read."""
    for task in tasks_with_updates(updates.root):
        yield Evidence(task, updates.of(task), None)


def evidence_of(
    session: SessionDir,
    cache: MutableMapping[str, RunFacts] | None = None,
    pause: Callable[[], None] = lambda: None,
    enough_tensors: int = ENOUGH_TENSORS,
    updates: GrowingUpdates | None = None,
) -> Iterator[Evidence]:
    """The evidence of each task of a session.

    Args:
        session: its directory.
        cache: runs that have been read before, which stay as they are.
        pause: called before each run that is read.
        updates: those of the session, if some have been read before.
        enough_tensors: no more runs are looked at once they have so many, but a few in any case.
    """
    known = {} if cache is None else cache
    of_task: dict[int, list[RunFacts]] = {}
    runs = sorted(session.runs, key=lambda run: (run.index, run.timestamp))
    chosen = runs if len(runs) <= MOST_RUNS else [*runs[: MOST_RUNS // 2], *runs[-MOST_RUNS // 2 :]]
    updates = GrowingUpdates(Path(session.root)) if updates is None else updates
    tasks = tasks_with_updates(updates.root)
    looked_at, tensors = 0, 0
    for run in _from_both_ends(chosen):
        if looked_at >= FEW_RUNS * max(len(tasks), 1) and tensors >= enough_tensors * max(len(tasks), 1):
            break
        facts = known.get(run.name)
        if facts is None:
            pause()
            try:
                if read_description(run.path).status == RUNNING:
                    continue
                facts = known[run.name] = facts_of_dump(run.open(validate=False), _GRAPHS)
            except (OSError, ValueError):
                continue
        looked_at, tensors = looked_at + 1, tensors + len(facts.times)
        of_task.setdefault(facts.info.task, []).append(facts)
    for gone in set(known) - {run.name for run in chosen}:
        del known[gone]
    for task in sorted({*of_task, *tasks}):
        looked = sorted(of_task.get(task, ()), key=lambda facts: (facts.info.index, facts.info.timestamp))
        yield Evidence(task, updates.of(task), looked)


def _from_both_ends(runs: Sequence[T]) -> Iterator[T]:
    """The first, the last, the second, and so on.

    >>> list(_from_both_ends([1, 2, 3, 4, 5]))
    [1, 5, 2, 4, 3]
    """
    for place in range((len(runs) + 1) // 2):
        yield runs[place]
        if place < len(runs) // 2:
            yield runs[-1 - place]
