"""What rules look at: the updates and the kept runs of one task."""

from __future__ import annotations

import functools
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from tensortap.analyze.facts import RunFacts, facts_of_dump
from tensortap.records import ParameterUpdate, Update
from tensortap.store.description import RUNNING, read_description
from tensortap.store.updates import read_updates, tasks_with_updates

if TYPE_CHECKING:
    from tensortap.reader import SessionDir

__all__ = ["Evidence", "evidence_of"]

MOST_RUNS = 24
"""That are looked at of one task: the first ones, and the last."""


class Evidence:
    """The updates and runs of one task, oldest first.

    Args:
        task: its rank.
        updates: that were looked at.
        runs: that were kept and are over.

    Attributes:
        training_runs: runs in which models were trained.
    """

    def __init__(self, task: int, updates: list[Update], runs: list[RunFacts]) -> None:
        self.task = task
        self.updates = updates
        self.runs = runs
        self.training_runs = [run for run in runs if run.circumstances.trains]

    @functools.cached_property
    def optimizers(self) -> dict[str, list[Update]]:
        """The updates of each optimizer, by its name."""
        found: dict[str, list[Update]] = {}
        for update in self.updates:
            found.setdefault(update.optimizer, []).append(update)
        return found

    @functools.cached_property
    def parameters(self) -> dict[str, list[tuple[Update, ParameterUpdate]]]:
        """What each update meant to each parameter, by its name."""
        found: dict[str, list[tuple[Update, ParameterUpdate]]] = {}
        for update in self.updates:
            for parameter in update.parameters:
                found.setdefault(parameter.name, []).append((update, parameter))
        return found

    @functools.cached_property
    def steps(self) -> int:
        """How many steps there have been, as far as is known."""
        told = [each.step for each in self.updates] + [run.info.global_step for run in self.runs]
        return max(told, default=-1) + 1


def evidence_of(
    session: SessionDir, cache: MutableMapping[str, RunFacts] | None = None
) -> Iterator[Evidence]:
    """The evidence of each task of a session.

    Args:
        session: its directory.
        cache: runs that have been read before, which stay as they are.
    """
    known = {} if cache is None else cache
    of_task: dict[int, list[RunFacts]] = {}
    runs = sorted(session.runs, key=lambda run: (run.index, run.timestamp))
    chosen = runs if len(runs) <= MOST_RUNS else [*runs[: MOST_RUNS // 2], *runs[-MOST_RUNS // 2 :]]
    for run in chosen:
        facts = known.get(run.name)
        if facts is None:
            try:
                if read_description(run.path).status == RUNNING:
                    continue
                facts = known[run.name] = facts_of_dump(run.open(validate=False))
            except (OSError, ValueError):
                continue
        of_task.setdefault(facts.info.task, []).append(facts)
    for gone in set(known) - {run.name for run in chosen}:
        del known[gone]
    root = Path(session.root)
    for task in sorted({*of_task, *tasks_with_updates(root)}):
        yield Evidence(task, read_updates(root, task), of_task.get(task, []))
