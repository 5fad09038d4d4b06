"""What `tensortap run` says last: what was seen, what of it was kept where, and what to look at next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import size_text
from tensortap.records.task import is_rank, task_name
from tensortap.store.processes import ProcessFacts, read_processes
from tensortap.store.session import session_size

if TYPE_CHECKING:
    from tensortap.analyze.checks import CheckFinding
    from tensortap.analyze.findings import Report
    from tensortap.report.page import Page

__all__ = ["add_advice", "count", "seen_by_all", "summary_page", "trained_in"]


def summary_page(
    watch: Any, report: Report, findings: Sequence[CheckFinding], root: str, question: str
) -> Page:
    """What was seen, what of it was kept where, and what to look at next."""
    from tensortap.report.answer import not_looked_at
    from tensortap.report.page import Page

    seen = watch.seen
    page = Page()
    processes = trained_in(report.directory)
    all_seen = seen_by_all(watch, processes)
    facts = [
        count(all_seen["seen_runs"], "run"),
        *_steps(all_seen["seen_steps"], all_seen["seen_passes"]),
        count(all_seen["seen_tensors"], "tensor"),
        count(all_seen["seen_records"], "record"),
        f"{all_seen['dropped']:,} dropped",
    ]
    if seen.skipped:
        facts.append(f"{count(seen.skipped, 'step')} skipped by the gradient scaler")
    if seen.left_out:
        facts.append(f"{count(seen.left_out, 'update')} left out (--skip-bad)")
    if seen.unrecorded is not None:
        run, left_out, executed, runs = seen.unrecorded
        more = f" (and some of {count(runs - 1, 'more run')})" if runs > 1 else ""
        facts.append(
            f"{left_out:,} of {count(executed, 'operation')} of run {run} not recorded: over the limit{more}"
        )
    if seen.elsewhere:
        facts.append(f"{count(seen.elsewhere, 'step')} in other threads, which were not watched")
    facts += [f"{number:,} {what}" for what, number in seen.unseen.items()]
    page.line(("tensortap", "bold"))
    page.field("seen", ", ".join(facts) + _by_whom(processes))
    if watch.budget is not None:
        page.field("budget", _budget_text(watch.budget))
    found = report.first_bad
    where = shlex.quote(root)
    unwatched = None if watch.budget is None else watch.budget.bad
    if unwatched is not None and (found is None or found.step >= unwatched[0]):
        step, what = unwatched
        since = f"since step {step}, which" if step >= 0 else "in a run that"
        page.field("health", f"bad {since} was not watched: {what}", "red")
        commands = [["why", where + question]]
    elif found is None:
        sound = "no bad value" if "--filter" not in question else "no match"
        if report.unread:
            sound += f" in what was looked at; {not_looked_at(report.unread)}"
        elif not report.coverage.is_complete:
            sound += " in what was seen"
        page.field("health", sound, "green" if report.is_healthy else "yellow")
        commands = [["ls", where], ["health", where]]
    else:
        line = "" if found.source is None else f", {os.path.basename(found.source.file)}:{found.source.line}"
        place = f" on {task_name(found.rank)}" if len(report.ranks) > 1 else ""
        since = "bad since" if "--filter" not in question else "first match at"
        when = f"step {found.step}" if found.step >= 0 else f"run {found.run}"
        page.field("health", f"{since} {when}{place}: {found.node.name}{line}", "red")
        task = ["--task", str(found.rank)] if found.rank else []
        commands = [["why", where + question], ["ls", where, "--run", str(found.run), *task, "--bad"]]
    if findings:
        sure = sum(each.is_sure for each in findings)
        likely = len(findings) - sure
        told = [text for number, text in ((sure, f"{sure} sure"), (likely, f"{likely} likely")) if number]
        page.field(
            "wrong",
            f"{', '.join(told)}: {findings[0].kind}, {findings[0].subject}",
            "red" if sure else "yellow",
        )
        commands.append(["explain", findings[0].kind])
    for number, sentence in enumerate(report.coverage.sentences):
        page.field("" if number else "unseen", sentence, "yellow")
    for number, sentence in enumerate(report.coverage.hang_sentences):
        page.field("" if number else "stood", sentence, "yellow")
    for number, sentence in enumerate(report.coverage.restarts):
        page.field("" if number else "again", sentence)
    said_of_ranks = _of_ranks(watch.root)
    for number, sentence in enumerate(said_of_ranks):
        page.field("" if number else "ranks", sentence, "red")
    if said_of_ranks:
        commands.append(["ranks", where])
    if any(watch.root.glob("timelines/timeline-*")):
        commands.append(["profile", shlex.quote(os.path.join(root, "timelines"))])
    fewer = ", fewer than of a smaller program" if watch.samples.left_out else ""
    kept = f"{count(report.runs, 'run')}{fewer}, {size_text(session_size(report.directory))}, in {root}"
    page.field("kept", kept)
    for hook in watch.hooks:
        for outcome in getattr(hook, "outcomes", list)():
            page.field("stream", outcome)
    for number, words in enumerate(commands):
        page.command("" if number else "next", ["tensortap", *words])
    return page


def _steps(steps: int, passes: int) -> list[str]:
    words = [count(steps, "optimizer step")] if steps or not passes else []
    return [*words, f"{passes:,} backward pass{'' if passes == 1 else 'es'}"] if passes else words


def _of_ranks(root: Path) -> list[str]:
    """Which rank is different, or slow, if one is."""
    from tensortap.analyze.copies import compare_copies
    from tensortap.report.copies import copies_sentences
    from tensortap.store.copies import read_copies

    return copies_sentences(compare_copies(read_copies(root)[0]), is_short=True)


def trained_in(root: Path) -> list[ProcessFacts]:
    """The processes of a session that have seen something, every attempt of each rank."""
    found = sorted(read_processes(root)[0], key=lambda each: (each.rank, each.began))
    return [facts for facts in found if facts.seen_runs]


def seen_by_all(watch: Any, processes: list[ProcessFacts]) -> dict[str, int]:
    """What all processes of a job have seen: sums, and of tensors the most."""
    told = [watch.seen.told()]
    told += [asdict(facts) for facts in processes if facts.pid != os.getpid()]
    return {name: (max if name == "seen_tensors" else sum)(each[name] for each in told) for name in told[0]}


def _by_whom(processes: list[ProcessFacts]) -> str:
    if len(processes) < 2:
        return ""
    ranks = {facts.rank for facts in processes}
    hosts = len({facts.host for facts in processes})
    who = count(len(ranks), "rank") if all(map(is_rank, ranks)) else f"{len(ranks)} processes"
    attempts = 1 + max(facts.restart for facts in processes)
    again = f", {attempts} attempts" if attempts > 1 else ""
    return f" ({who}{again}" + (f" on {hosts} machines)" if hosts > 1 else ")")


def _budget_text(budget: Any) -> str:
    """Which runs were watched, and what it cost."""
    runs = budget.watched + budget.left_out
    return (
        f"{budget.watched:,} of {count(runs, 'run')} watched, in the others updates were looked at; took "
        f"{budget.seconds:.1f} s, {budget.cost:.2f} times the program's own time ({budget.ratio:g} was asked for)"
        + ("" if budget.bad is None else "; all since the bad one were watched")
    )


def add_advice(page: Page, sentence: str, command: str) -> None:
    """Tell what to type instead, where children were not watched."""
    from tensortap.report.page import LABEL_WIDTH

    if sentence:
        page.field("instead", sentence)
    if command:  # in one piece, to be copied
        page.line("  ", (f"{'' if sentence else 'instead':<{LABEL_WIDTH}}", "dim"), (command, "cyan"))


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
