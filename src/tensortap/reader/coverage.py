"""What of a job was seen, from what its processes left in the session directory and what the system knows of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tensortap.analyze.coverage import Coverage, Guarded, RankState
from tensortap.analyze.facts import facts_of_dump
from tensortap.records.task import task_name
from tensortap.store.description import RUNNING, read_description
from tensortap.store.processes import ENDED, FAILED, ProcessFacts, read_processes
from tensortap.store.stored_run import open_run
from tensortap.store.system import Status, machine, status_of

if TYPE_CHECKING:
    from tensortap.reader.session_dir import RunRef, SessionDir

__all__ = ["HANG_SECS", "SILENT_SECS", "coverage_of", "coverage_of_session"]

HANG_SECS = 30.0
"""After so long at one line without a new record a process is said to hang."""

SILENT_SECS = 10.0
"""After so long without its sign of life, which comes every second, a process that lives is said to be silent."""

LOST_SECS = 60.0
"""The same for a process of another machine, or one that said nothing of itself: nothing else can be known of it."""

_BEATS_MISSED = 5
"""After so many a process that a server hears of is said to be lost."""

_GRAPHS_TRIED = 4
_SHOWN = 8


def coverage_of_session(session: SessionDir) -> Coverage:
    """How much of the job that wrote a session was seen."""
    processes, notices = read_processes(session.root)
    session.notices.extend(each for each in notices if each not in session.notices)
    if not processes:  # written by an earlier version, or by a server
        return Coverage(tuple(_unfinished(session.runs, time.time())))
    found = coverage_of(processes)
    session.notices.extend(each for each in _versions(processes) if each not in session.notices)
    runs = sorted(session.runs, key=lambda run: -run.index)
    began = {(facts.rank, facts.restart): facts.began * 1e6 for facts in processes if facts.restart}
    return replace(
        found,
        ranks=tuple(
            _with_records(
                each, [run for run in runs if run.timestamp >= began.get((each.rank, each.restart), 0)]
            )
            for each in found.ranks
        ),
    )


def coverage_of(
    processes: Iterable[ProcessFacts],
    now: float | None = None,
    status: Callable[[int], Status | None] = status_of,
) -> Coverage:
    """How much of a job was seen.

    Args:
        processes: what they left.
        now: seconds since the epoch.
        status: asks the system about a process.
    """
    now = time.time() if now is None else now
    latest: dict[int, ProcessFacts] = {}
    everyone = sorted(processes, key=lambda each: (each.restart, each.began))
    for facts in everyone:
        latest[facts.rank] = facts  # what a rank was before it was started again is history
    children = {child.pid: child for facts in everyone for child in facts.children}
    known = sum(child.evidence in ("trained", "model") for child in children.values())
    return Coverage(
        tuple(_state(facts, now, status) for _, facts in sorted(latest.items())),
        max((facts.world for facts in latest.values()), default=1),
        sum(facts.unwatched for facts in everyone),
        known,
        tuple(children),
        tuple(
            Guarded(rank, facts.budget, facts.cost, facts.watched, facts.guarded, facts.bad_step, facts.bad)
            for rank, facts in sorted(latest.items())
            if facts.budget
        ),
        tuple(
            _state(facts, now, status)
            for facts in everyone
            if facts.restart < latest[facts.rank].restart and facts.seen_runs
        ),
    )


def _versions(processes: Iterable[ProcessFacts]) -> Iterable[str]:
    """Says so if ranks were recorded by different versions."""
    ranks: dict[str, list[int]] = {}
    for facts in processes:
        if facts.version and facts.run >= 0:
            ranks.setdefault(facts.version, []).append(facts.rank)
    if len(ranks) > 1:
        told = "; ".join(
            f"{version} by {', '.join(map(task_name, sorted(set(numbers))[:_SHOWN]))}"
            for version, numbers in sorted(ranks.items())
        )
        yield f"The ranks of this job run different versions of tensortap: {told}. What one does not record is missing."


def _state(facts: ProcessFacts, now: float, status: Callable[[int], Status | None]) -> RankState:
    still = max(now - facts.since, 0.0)
    word = _word(facts, now, still, status)
    if word in ("silent", "stopped", "lost"):
        still = max(now - facts.seen, 0.0)
    if word == "interrupted":
        still = facts.interrupted
    return RankState(
        facts.rank,
        word,
        facts.run,
        facts.step,
        facts.node,
        facts.file,
        facts.line,
        facts.function,
        facts.call,
        facts.error,
        facts.seen,
        still if word not in ("ended", "failed", "died") else 0.0,
        facts.pid,
        facts.host,
        facts.local_rank,
        facts.restart,
    )


def _word(facts: ProcessFacts, now: float, still: float, status: Callable[[int], Status | None]) -> str:
    if facts.state == ENDED and facts.interrupted:
        return "interrupted"
    if facts.state in (ENDED, FAILED):
        return facts.state
    unheard = now - facts.seen
    if not facts.machine or facts.machine != machine():
        patience = LOST_SECS if not facts.beat else max(_BEATS_MISSED * facts.beat, SILENT_SECS)
        return "lost" if unheard > patience else "hangs" if still > HANG_SECS else "running"
    process = status(facts.pid)
    if process is None or process.is_over or process.start != facts.start:
        return "died"
    if process.state in ("T", "t"):
        return "stopped"
    if unheard > SILENT_SECS:
        return "silent"
    return "hangs" if still > HANG_SECS else "running"


def _with_records(state: RankState, runs: Sequence[RunRef]) -> RankState:
    """A rank that is in trouble, with what its last records say of where: they may be younger than its sign of life."""
    if not state.is_trouble:
        return state
    for ref in runs:
        if ref.index < state.run or (ref.index == state.run and state.node):
            break
        try:
            source = open_run(ref.path)
        except (OSError, ValueError):
            continue
        if source.task != state.rank:
            continue
        stored = [each for tensors in source.tensors.values() for each in tensors]
        node = max(stored, key=lambda each: each.timestamp).node_name if stored else ""
        if ref.index > state.run:
            step = source.core_metadata[0].global_step if source.core_metadata else -1
            state = replace(state, run=ref.index, step=step, file="", line=0, function="", call="")
        state = replace(state, node=node or state.node)
        break
    return state if state.file or not state.node else _with_line(state, runs)


def _with_line(state: RankState, runs: Sequence[RunRef]) -> RankState:
    """The line of the operation that was recorded last; the graph of any run will do, for names are the same in all."""
    for ref in [ref for ref in runs if ref.index <= state.run][:_GRAPHS_TRIED]:
        try:
            node = facts_of_dump(ref.open(validate=False)).nodes.get(state.node)
        except (OSError, ValueError):
            continue
        if node is not None:
            line = node.source
            return (
                state
                if line is None
                else replace(state, file=line.file, line=line.line, function=line.function)
            )
    return state


def _unfinished(runs: Sequence[RunRef], now: float) -> Iterable[RankState]:
    """The ranks whose last run was never finished, and that have written nothing for long."""
    last: dict[int, tuple[RunRef, str, int]] = {}
    for ref in runs:
        try:
            description = read_description(ref.path)
        except (OSError, ValueError):
            continue
        task = description.info.task
        if task not in last or last[task][0].index <= ref.index:
            last[task] = (ref, description.status, description.info.global_step)
    for task, (ref, status, step) in sorted(last.items()):
        written = _last_write(ref.path)
        if status != RUNNING or now - written < LOST_SECS:
            yield RankState(task, "ended" if status != RUNNING else "running", ref.index, step)
            continue
        state = RankState(task, "unfinished", ref.index, step, seen=written, still_secs=now - written)
        yield _with_records(state, sorted(runs, key=lambda run: -run.index))


def _last_write(run_dir: Path) -> float:
    try:
        return max(each.stat().st_mtime for each in run_dir.iterdir())
    except (OSError, ValueError):
        return 0.0
