"""One session out of the directories that the machines of a job have written, each for its own ranks.

What is made is a temporary directory of hard links, or of copies where the disk of temporary files is another one; the
directories stay as they are.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tensortap.errors import UsageError
from tensortap.records.task import is_rank, task_name
from tensortap.store.layout import process_folder
from tensortap.store.processes import ProcessFacts, read_processes

__all__ = ["gathered"]


def gathered(directories: Sequence[Path]) -> Path:
    """A directory in which the runs of all these are.

    Raises:
        UsageError: they are of different jobs, or one rank is in two of them.
    """
    told = [(directory, _ranks(directory)) for directory in directories]
    _check_job(told)
    target = Path(tempfile.mkdtemp(prefix="tensortap-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for number, directory in enumerate(directories):
        for entry in sorted(directory.iterdir()):
            # Processes of two machines may have the same number.
            _link(entry, target / entry.name, f"{number}-" if entry == process_folder(directory) else "")
    return target


def _link(source: Path, place: Path, prefix: str = "") -> None:
    """The same file at another place, or a directory of such; a copy of what is on another disk."""
    if source.is_dir() and not source.is_symlink():
        place.mkdir(exist_ok=True)
        for inner in source.iterdir():
            _link(inner, place / f"{prefix}{inner.name}")
    elif not os.path.lexists(place):  # graphs and sources are named by what is in them: the same is the same
        try:
            os.link(source, place, follow_symlinks=False)
        except OSError:
            shutil.copyfile(source, place, follow_symlinks=False)


def _ranks(directory: Path) -> dict[int, ProcessFacts]:
    """The ranks that have recorded something in a directory."""
    processes, _ = read_processes(directory)
    processes.sort(key=lambda each: (each.restart, each.began))
    return {each.rank: each for each in processes if each.seen_runs or each.run >= 0}


def _check_job(told: Sequence[tuple[Path, dict[int, ProcessFacts]]]) -> None:
    owners: dict[int, Path] = {}
    first: tuple[Path, ProcessFacts] | None = None
    for directory, ranks in told:
        for rank, facts in ranks.items():
            if not is_rank(rank):
                continue
            if rank in owners:
                raise UsageError(
                    f"{task_name(rank).capitalize()} is in {str(owners[rank])!r} and in {str(directory)!r}: these are "
                    "different jobs, or one directory twice. Name directories of one job, each with its own ranks."
                )
            owners[rank] = directory
            first = first or (directory, facts)
            launches = {first[1].launch, facts.launch} - {""}
            if len(launches) > 1 or facts.world != first[1].world:
                raise UsageError(
                    f"{str(first[0])!r} and {str(directory)!r} are of different jobs: rank {first[1].rank} was one of "
                    f"{first[1].world} (launch {first[1].launch or 'unknown'}), rank {rank} one of {facts.world} "
                    f"(launch {facts.launch or 'unknown'})."
                )
