"""The first bad value of a whole session: over runs, and over ranks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.analyze.collectives import Arrival, collective_words
from tensortap.analyze.coverage import Coverage
from tensortap.analyze.facts import RunFacts, facts_of_dump
from tensortap.analyze.findings import UNEXPLAINED, Finding, Origin, Report, RunReport
from tensortap.analyze.first_bad import Condition, made_by_update, maker_of, search
from tensortap.analyze.growth import growth_of
from tensortap.analyze.vocabulary import operation_of
from tensortap.phases import is_variable
from tensortap.pill import NAN_COUNT_OP, PILL_OP, bad_rows

if TYPE_CHECKING:
    from tensortap.reader import DebugDumpDir, RunRef, SessionDir

__all__ = ["search_run", "search_session"]

_LATER_RUNS, _MOST_LATER = 4, 256
"""In how many bad runs of each other rank after the first one the way of its value there is looked for."""

Progress = Callable[[Iterable[Any], int], Iterable[Any]]
"""Passes through what it is given, and shows how far it is."""


def search_session(
    session: SessionDir,
    *,
    exclude: str | None = None,
    condition: Condition | None = None,
    task: int | None = None,
    goes_on: bool = False,
    only: str | None = None,
    cleared: Container[str] = (),
    progress: Progress = lambda items, total: items,
) -> Report:
    """The first bad value of a session.

    Runs are looked at in the order of their steps, and no further than needed: once a value has reached the parameters,
    all later runs are bad because of it. Among the ranks of one step the one that went bad first in time is named. A
    program without steps is compared with others by the clock.

    Args:
        session: the session directory.
        exclude: regular expression; nodes in whose name it is found are never bad.
        condition: replaces "holds NaN or infinities".
        task: only look at what this rank wrote.
        goes_on: the program is still running, so that nothing ended with the last run.
        only: name of the one run to look at.
        cleared: names of runs that are known to be good and are not looked at again.
        progress: wraps the runs that are looked at.
    """
    coverage = session.coverage()
    if only is not None:
        suspects = {only}
    else:
        suspects = session.suspects() if condition is None else {run.name for run in session.runs}
    runs = sorted(session.runs, key=lambda run: (run.index, run.timestamp))
    chosen = [run for run in runs if run.name in suspects and run.name not in cleared]
    notices = list(session.notices)
    reports: list[RunReport] = []
    first: Finding | None = None
    home: RunFacts | None = None
    beside: tuple[Finding, RunFacts] | None = None
    looked_at = 0
    for run in progress(chosen, len(chosen)):
        # All ranks of the step in which something was found are looked at. Who has sent a bad value may have counted
        # more steps by then, as where one rank trains and others act.
        if first is not None and run.index > first.run:
            if first.came_by is None:
                break
            if run.timestamp > first.timestamp:
                continue
        try:
            facts = _facts_of_run(run, runs)
            facts.goes_on = facts.goes_on or goes_on
        except (OSError, ValueError) as error:
            notices.append(f"The run {run.name} cannot be read: {error}")
            continue
        if task is not None and facts.info.task != task:
            continue
        report = search(facts, exclude=exclude, condition=condition)
        looked_at += report.looked_at
        reports.append(report)
        notices += [each for each in report.notices if each not in notices]
        found = report.first_bad
        if found is not None and _is_whole_program(facts):
            if beside is None or found.timestamp < beside[0].timestamp:
                beside = found, facts
        elif found is not None and (first is None or _precedes(found, first)):
            first, home = found, facts
    # The number of such a run says nothing about the steps of others, such as those whose weights it has loaded.
    if beside is not None and (first is None or beside[0].timestamp < first.timestamp):
        first, home = beside
    if first is not None:
        made = None
        if home is not None:
            made = _maker_in_earlier_run(first, home, runs) or _update_in_earlier_run(
                session, first, home, runs
            )
        first = _maybe_received(made or _told_whole(session, first, home, runs), coverage, home)
        first = _maybe_unseen(first, coverage)
        if len(session.tasks()) > 1 and condition is None and only is None:
            after = [run for run in chosen if run.index > first.run]
            first = replace(first, arrivals=_arrivals(first, reports, after))
        reports = [_with_first(report, first) for report in reports]
    counts = session.counts()
    missing = counts.get("dropped", 0) + counts.get("failed", 0)
    if missing:
        notices.append(f"{missing} records were dropped or failed: what they would have shown is not known.")
    if counts.get("unrecorded"):
        notices.append(
            f"{counts['unrecorded']} operations were not recorded, because their runs had too many: what they would "
            "have shown is not known."
        )
    if first is None and not looked_at and not cleared and not counts.get("muted"):
        looked_at = sum(len(session.tensors(op)) for op in (PILL_OP, "DebugIdentity", NAN_COUNT_OP))
    later = () if first is None or condition is not None else _bad_later(session, first)
    return Report(
        Path(session.root),
        first,
        tuple(reports),
        len(session.runs),
        looked_at,
        later,
        tuple(session.tasks()),
        tuple(notices),
        is_known=first is not None or bool(cleared) or bool(counts.get("muted")) or bool(looked_at),
        coverage=coverage,
        unread=tuple(session.not_looked_at()),
    )


def search_run(
    dump: DebugDumpDir,
    session: SessionDir | None = None,
    *,
    exclude: str | None = None,
    condition: Condition | None = None,
) -> Report:
    """The first bad value of one run; what came bad is traced to the run before, if there is a session."""
    facts = facts_of_dump(dump)
    if session is not None:
        facts.goes_on = any(other.index > facts.info.index for other in session.runs)
        _lend_graph(facts, session.runs)
    report = search(facts, exclude=exclude, condition=condition)
    first = report.first_bad
    if first is not None and session is not None:
        first = _told_whole(
            session, first, facts, sorted(session.runs, key=lambda run: (run.index, run.timestamp))
        )
        report = _with_first(report, first)
    root = dump.dump_root if session is None else session.root
    return Report(
        Path(root),
        first,
        (report,),
        1,
        report.looked_at,
        ranks=(facts.info.task,),
        notices=tuple(report.notices),
        is_session=session is not None,
        is_known=bool(facts.tensors) or facts.is_muted,
        unread=report.unread,
    )


def _facts_of_run(run: RunRef, runs: Sequence[RunRef]) -> RunFacts:
    facts = facts_of_dump(run.open(validate=False))
    facts.goes_on = any(other.index > run.index for other in runs)
    _lend_graph(facts, runs)
    return facts


def _lend_graph(facts: RunFacts, runs: Sequence[RunRef]) -> None:
    """Give a run that died before its graph was stored that of the nearest one: names are the same in all of them."""
    if facts.nodes or not facts.tensors:
        return
    for other in sorted(runs, key=lambda run: abs(run.index - facts.info.index)):
        if other.name == facts.name:
            continue
        try:
            found = facts_of_dump(other.open(validate=False))
        except (OSError, ValueError):
            continue
        if found.nodes:
            facts.nodes = found.nodes
            facts.notices.append(f"The graph of {facts.name} was not stored; that of {other.name} is used.")
            return


def _is_whole_program(facts: RunFacts) -> bool:
    """Whether a run is all that a process did that has trained and called nothing."""
    return facts.circumstances.is_preparation and not facts.circumstances.counts_steps


def _precedes(one: Finding, other: Finding) -> bool:
    """Whether one finding comes before another: by step, then made before received, then by the clock.

    Where a compiler has put the exchange between ranks into an operation, a rank that received has no cause to tell. Of
    another step, only what was made before it was received counts.
    """
    if one.run > other.run:
        was_made = one.came_by is None and one.rank != other.rank and one.timestamp < other.timestamp
        return was_made and other.came_by is not None

    def key(finding: Finding) -> tuple[int, bool, bool, int]:
        is_unexplained = finding.cause.kind == UNEXPLAINED.kind
        return finding.run, finding.came_by is not None, is_unexplained, finding.timestamp

    return key(one) < key(other)


def _arrivals(first: Finding, reports: Sequence[RunReport], later: Sequence[RunRef]) -> tuple[Arrival, ...]:
    """How a bad value came to the other ranks: in the same run, or in one of the next."""
    found: dict[int, Arrival] = {}

    def note(report: RunReport) -> None:
        if report.findings and report.rank != first.rank and report.rank not in found:
            found[report.rank] = _arrival(report.findings[0])

    for report in reports:
        # A rank that counts fewer steps has received it in an earlier one.
        received = report.findings and report.findings[0].came_by is not None
        if report.run >= first.run or (received and report.findings[0].timestamp > first.timestamp):
            note(report)
    looked_at: Counter[int] = Counter()
    for run in later[:_MOST_LATER]:
        try:
            rank = run.open(validate=False).source.task
            if rank != first.rank and rank not in found and looked_at[rank] < _LATER_RUNS:
                looked_at[rank] += 1
                note(search(_facts_of_run(run, later), explained=False))
        except (OSError, ValueError):
            continue
    return tuple(found[rank] for rank in sorted(found))


def _arrival(finding: Finding) -> Arrival:
    when = f"step {finding.step}" if finding.step >= 0 else f"run {finding.run}"
    by = finding.came_by
    how = f"by {collective_words(by)}" if by is not None else f"where {finding.node.name} was bad first"
    return Arrival(
        finding.rank,
        finding.run,
        finding.step,
        None if by is None else by.name,
        f"to rank {finding.rank} in {when}, {how}",
    )


def _with_first(report: RunReport, first: Finding) -> RunReport:
    findings = tuple(
        first if (each.tensor, each.run_name) == (first.tensor, first.run_name) else each
        for each in report.findings
    )
    return replace(report, findings=findings)


def _told_whole(
    session: SessionDir, first: Finding, facts: RunFacts | None, runs: Sequence[RunRef]
) -> Finding:
    """The finding with what earlier runs say about it."""
    if first.phase == "parameter" or (is_variable(first.node.op_type) and first.phase == "optimizer"):
        origin = _origin(session, first, runs)
        if origin.run is None:
            return replace(first, origin=origin)
        advice = f"Look at run {origin.run}, where it began."
        return replace(first, origin=origin, cause=replace(first.cause, advice=advice))
    growth = growth_of(session, first, facts)
    if growth is not None:
        cause = first.cause
        return replace(
            first,
            cause=replace(
                cause, sentence=f"{cause.sentence} {growth.sentence}", advice=growth.advice or cause.advice
            ),
        )
    return first


def _maker_in_earlier_run(first: Finding, facts: RunFacts, runs: Sequence[RunRef]) -> Finding | None:
    """What made a value bad that came from outside, if the engine knows from which run it is."""
    origin = facts.circumstances.came_from.get(first.tensor)
    if origin is None:
        return None
    for run in runs:
        if run.index > first.run:
            break
        try:
            earlier = _facts_of_run(run, runs)
        except (OSError, ValueError):
            continue
        if (earlier.info.task, earlier.circumstances.number) != (first.rank, origin[0]):
            continue
        made = maker_of(earlier, origin[1])
        if made is None:
            return None
        return _with_first_use(made, first, facts)
    return None


def _with_first_use(made: Finding, first: Finding, facts: RunFacts) -> Finding:
    """What made a value, with what came of it in the later run in which it was used first."""
    user = next((node for node, _ in facts.consumers(first.tensor)), first.node)
    where = (
        f" ({os.path.basename(first.source.file)}:{first.source.line})" if first.source is not None else ""
    )
    when = f"step {first.step}" if first.step >= 0 else f"run {first.run}"
    used = f"It was used first in {when}, as {first.node.name}, by {user.name}{where}."
    return replace(
        made,
        origin=Origin(used, first.run, user.name),
        propagators=first.propagators,
        reached=first.reached,
    )


def _update_in_earlier_run(
    session: SessionDir, first: Finding, facts: RunFacts, runs: Sequence[RunRef]
) -> Finding | None:
    """The update that made a variable bad, if it is one that shows nothing of what it makes; and if it is plain why."""
    variable = facts.variable_of(first.tensor)
    if variable is None or not is_variable(first.node.op_type):
        return None
    since = _bad_since(session, first)
    for run in runs:
        if run.index != since - 1:
            continue
        try:
            earlier = _facts_of_run(run, runs)
        except (OSError, ValueError):
            continue
        if earlier.info.task != first.rank or variable not in earlier.updates:
            continue
        if search(earlier).first_bad is not None:
            return None  # which tells more
        made = made_by_update(earlier, earlier.updates[variable][-1], first.health)
        if made.cause != UNEXPLAINED and made.cause.kind != "input-not-recorded":
            return _with_first_use(made, first, facts)
    return None


def _maybe_received(first: Finding, coverage: Coverage, facts: RunFacts | None) -> Finding:
    """The finding with a warning, if it came by way of a collective that ranks take part in whom nobody watched."""
    givers = [] if facts is None else [facts.node_of(each.tensor) for each in first.inputs]
    op_types = {each.op_type for each in (first.node, *givers) if each is not None}
    is_reduced = first.node.op_type == "AccumulateGrad"
    came = first.came_by is not None or any(operation_of(each).communicates for each in op_types)
    if not coverage.missing or not (is_reduced or came):
        return first
    told = "" if first.origin is None else f"{first.origin.sentence} "
    warning = f"{coverage.missing_sentence} What ranks exchange may have come bad from there."
    return replace(first, origin=Origin(f"{told}{warning}"))


def _maybe_unseen(first: Finding, coverage: Coverage) -> Finding:
    """The finding with where it came from, if that was a run before it which nobody watched."""
    unseen = next((each for each in coverage.guarded if each.bad and each.rank == first.rank), None)
    if (
        unseen is None
        or first.step < unseen.step
        or (unseen.step < 0 and first.phase in ("forward", "backward"))
    ):
        return first
    when = f"step {unseen.step}" if unseen.step >= 0 else "a run"
    told = (
        f"The bad value was made in {when}, which was not watched: after it, {unseen.bad} was NaN or infinite. The "
        "operation that made it so is not known."
    )
    return replace(
        first,
        origin=Origin(told, is_unseen=True),
        cause=replace(first.cause, advice="Run it again without a budget, or watch that step with --steps."),
    )


def _origin(session: SessionDir, first: Finding, runs: Sequence[RunRef]) -> Origin:
    """Where a parameter that was bad when its run began has become bad."""
    since = _bad_since(session, first)
    for run in reversed([run for run in runs if run.index < since]):
        try:
            facts = _facts_of_run(run, runs)
        except (OSError, ValueError):
            continue
        if facts.info.task != first.rank:
            continue
        found = search(facts).first_bad
        if found is not None:
            made = f"{found.node.name} made it so in run {run.index}: {found.cause.sentence}"
            return Origin(made, run.index, found.node.name)
        written = [each for each in facts.tensors if facts.written_variable(each) == first.node.name]
        gap = since - run.index
        when = f"run {run.index}" + ("" if gap == 1 else f", {gap} runs earlier and the last one recorded,")
        steps = first.step - facts.info.global_step if first.run == since else 1
        if written and steps > 1:  # a budget of time, or only some steps were asked for
            last = first.step - 1
            which = f"step {last} was" if steps == 2 else f"steps {last - steps + 2} to {last} were"
            return Origin(
                f"It was good when step {facts.info.global_step} had updated it ({written[-1]}). After it, "
                f"{which} not watched: the operation that made it so is not known."
            )
        if written:
            return Origin(
                f"It was good when {when} had updated it ({written[-1]}): it was changed between the runs, by "
                "something that is not part of the step, such as loading a checkpoint."
            )
        updates = facts.updates.get(facts.variable_of(first.tensor) or "", ())
        if updates:
            return Origin(f"It was good in {when}, and changed there by {updates[-1].name}.", run.index)
        return Origin(f"It was good in {when}; what changed it was not recorded.")
    if since == 0:
        return Origin("It was so in the first run: it was made or loaded that way.")
    return Origin(
        f"Nothing that can be read was recorded before run {since}, so where it became so is not known."
    )


def _bad_later(session: SessionDir, first: Finding) -> tuple[int, ...]:
    """Numbers of the later runs in which the same tensor was bad again."""
    history = session.history(first.tensor)
    bad = bad_rows(history)
    later = history["run"][bad & (history["task"] == first.rank) & (history["run"] > first.run)]
    return tuple(dict.fromkeys(int(run) for run in later))  # once, however often a loop has made it in a run


def _bad_since(session: SessionDir, first: Finding) -> int:
    """The first of the runs up to this one in all of which the parameter was bad."""
    history = session.history(first.tensor)
    history = history[(history["task"] == first.rank) & (history["run"] < first.run)]
    since = first.run
    for run, bad in zip(history["run"][::-1].tolist(), bad_rows(history)[::-1].tolist(), strict=True):
        if not bad:
            break
        since = run
    return since
