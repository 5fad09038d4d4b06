"""The answer: which operation made the first bad value, why, and what to look at next."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from tensortap.analyze.coverage import Coverage, Guarded
from tensortap.analyze.findings import Finding, InputHealth, Report
from tensortap.pill import BAD_COLUMNS, BAD_WORDS
from tensortap.records import Frame
from tensortap.records.task import task_name
from tensortap.report.page import Page, Piece

__all__ = ["SHOWN_INPUTS", "answer", "answer_of_finding", "not_looked_at", "short_function", "short_path"]

SHOWN_INPUTS = 6
"""Inputs of one node that are listed: a stack of a batch may have hundreds."""

_SHOWN_SPREAD = 4
_UNCERTAIN = ("input-not-recorded", "only-nan-counted", "no-graph", "not-looked-at")
"""Causes that say themselves that something is missing."""

_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
"""The beginning of a path of a file that came with a package."""


def answer(
    report: Report, *, show_contained: bool = False, width: int | None = None, page: Page | None = None
) -> Page:
    """A page for a whole report; on the one that is given, if there is one."""
    page = Page(width) if page is None else page
    if report.first_bad is None and report.coverage.unseen_bad is not None:
        _unseen(page, report.coverage.unseen_bad)
    elif report.first_bad is None:
        _healthy(page, report)
    else:
        _write_finding(page, report.first_bad, len(report.ranks) > 1)
        _others(page, report)
        for number, sentence in enumerate(_besides(report.coverage)):
            page.field("" if number else "besides", sentence, "yellow")
        _next_commands(page, report.first_bad, report.directory, report.is_session)
    if show_contained:
        _contained(page, report)
    return page


def answer_of_finding(
    finding: Finding,
    directory: str | Path | None = None,
    *,
    name_rank: bool = False,
    width: int | None = None,
) -> Page:
    """A page for one finding, as it is printed while a program runs.

    Args:
        finding: explained.
        directory: the session directory; with it, the page ends with the next commands.
        name_rank: there are several ranks.
        width: columns; those of the terminal by default.
    """
    page = Page(width)
    _write_finding(page, finding, name_rank)
    if directory is not None:
        _next_commands(page, finding, Path(directory))
    return page


def _besides(coverage: Coverage) -> Iterable[str]:
    return filter(None, (*coverage.sentences, *coverage.waiting, coverage.guarded_sentence))


def _unseen(page: Page, guarded: Guarded) -> None:
    when = f"step {guarded.step}" if guarded.step >= 0 else "a run"
    page.line(("✗ bad value", "bold red"), f"  in {when}, which was not watched")
    page.line()
    page.field("known", guarded.sentence)
    page.field("", "The operation that made it so is not known.")
    page.field("try", "Run it again without a budget, or watch that step with --steps.", "green")


def _healthy(page: Page, report: Report) -> None:
    where = f"{_many(report.runs, 'run')} of {short_path(str(report.directory))}"
    if report.is_healthy:
        so_far = " so far" if report.coverage.running else ""
        page.line(("✓ healthy", "bold green"), f"{so_far}  no bad value in {where}")
    else:
        title = "✗ not finished" if report.coverage.troubled else "? not all was seen"
        page.line((title, "bold yellow"), f"  no bad value in what was recorded, {where}")
        for sentence in report.coverage.sentences:
            page.text(sentence, "yellow")
        if report.unread:
            page.text(
                f"{not_looked_at(report.unread)}: whether there is a bad value in them is not known.",
                "yellow",
            )
    for sentence in report.coverage.remarks:
        page.text(sentence, "dim")
    contained = sum(len(each.contained) for each in report.reports)
    intended = sum(each.intended for each in report.reports)
    if intended:
        page.text(f"{_many(intended, 'tensor')} with infinities that were put there on purpose.", "dim")
    if contained:
        page.text(
            f"{_many(contained, 'bad value')} came to nothing: masked, or swallowed by what used it (see --all).",
            "dim",
        )


def _write_finding(page: Page, finding: Finding, name_rank: bool) -> None:
    when = f"step {finding.step}" if finding.step >= 0 else f"run {finding.run}"
    if finding.step >= 0 and finding.step != finding.run:
        when += f" (run {finding.run})"
    if name_rank:
        when += f" on {task_name(finding.rank)}"
    title = "✗ first bad value" if finding.health.is_bad else "✗ first match"
    if finding.origin is not None and finding.origin.is_unseen:
        title = "✗ first bad value that was seen"
    page.line((title, "bold red"), f"  {_what(finding)} at {when}")
    page.line()
    page.columns("node", [[(finding.node.name, "bold"), (finding.node.op_type, "cyan")]])
    if finding.module is not None and finding.phase in ("forward", "backward", "optimizer"):
        page.columns("module", [[finding.module, (_PHASES[finding.phase], "dim")]])
    else:
        page.field("phase", _PHASES[finding.phase])
    if finding.during is not None:
        page.field("during", finding.during)
    if finding.source is not None:
        frame = finding.source
        label = "line" if finding.node.source is not None else "used at"
        page.columns(
            label,
            [
                [
                    (f"{short_path(frame.file)}:{frame.line}", "bold"),
                    (f"in {short_function(frame.function)}", "dim"),
                ]
            ],
        )
        if finding.source_text:
            page.code(finding.source_text, "yellow")
        caller = _own_line(finding)
        if caller is not None:
            page.columns(
                "from",
                [
                    [
                        (f"{short_path(caller.file)}:{caller.line}", "bold"),
                        (f"in {short_function(caller.function)}", "dim"),
                    ]
                ],
            )
    page.line()
    page.field("cause", finding.cause.sentence, "bold")
    for sentence in finding.cause.proof:
        page.field("", sentence)
    if finding.origin is not None:
        page.field("", finding.origin.sentence)
    if finding.cause.advice:
        page.field("try", finding.cause.advice, "green")
    if not finding.is_certain and finding.cause.kind not in _UNCERTAIN and finding.inputs:
        page.field(
            "", "Not every input was recorded, so the value may have come bad from further up.", "yellow"
        )
    page.line()
    if finding.inputs:
        rows: list[list[Piece]] = [[each.tensor, _health(each)] for each in finding.inputs[:SHOWN_INPUTS]]
        page.columns("inputs" if len(rows) > 1 else "input", rows)
        if len(finding.inputs) > SHOWN_INPUTS:
            page.field("", f"and {len(finding.inputs) - SHOWN_INPUTS} more", "dim")
    page.columns("output", [[finding.tensor, (str(finding.health), "red")]])
    if finding.propagators:
        count = _many(len(finding.propagators), "tensor")
        reached = f", reaching {', '.join(finding.reached)}" if finding.reached else ""
        page.field("spread", f"to {count}{reached}")
    else:
        itself = f", but it is {', '.join(finding.reached)}" if finding.reached else ""
        page.field("spread", f"to nothing else that was recorded{itself}", "dim")


def _own_line(finding: Finding) -> Frame | None:
    """If the line is one of an installed package: the line of the user's own that led there."""
    own = finding.node.own_source
    if finding.source is None or not finding.source.is_installed or own is None or own.is_installed:
        return None
    return own


def _what(finding: Finding) -> str:
    """What is wrong with the output, in short."""
    health = finding.health
    if not health.is_bad:
        return health.spread
    kinds = [word for column, word in zip(BAD_COLUMNS, BAD_WORDS, strict=True) if health[column]]
    return " and ".join([", ".join(kinds[:-1]), kinds[-1]] if len(kinds) > 1 else kinds)


_PHASES = {
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer",
    "input": "input of the step",
    "parameter": "parameter, as it was before the step",
}


def _health(given: InputHealth) -> tuple[str, str]:
    style = {"good": "green", "unknown": "yellow", "intended": "cyan", "partly": "yellow"}.get(
        given.status, "red"
    )
    return str(given), style


def _others(page: Page, report: Report) -> None:
    first = report.first_bad
    home = next((each for each in report.reports if first in each.findings), None)
    others = [] if home is None else [each for each in home.findings if each is not first]
    if others:
        names = ", ".join(each.node.name for each in others[:_SHOWN_SPREAD])
        more = f" and {len(others) - _SHOWN_SPREAD} more" if len(others) > _SHOWN_SPREAD else ""
        page.field("also", f"{_many(len(others), 'other node')} went bad independently: {names}{more}")
    if report.later_runs:
        count = len(report.later_runs)
        page.field("later", f"bad again in {_many(count, 'run')}, the last is run {report.later_runs[-1]}")
    contained = 0 if home is None else len(home.contained)
    if contained:
        page.field(
            "ignored", f"{_many(contained, 'bad value')} that came to nothing (--all shows them)", "dim"
        )


def _next_commands(page: Page, finding: Finding, directory: Path, is_session: bool = True) -> None:
    where = shlex.quote(short_path(str(directory)))
    run = ["-r", str(finding.run)] if is_session else []
    if finding.rank and is_session:
        run += ["--task", str(finding.rank)]
    recorded = [each.tensor for each in finding.inputs if each.health is not None]
    shown = shlex.quote(recorded[-1] if recorded else finding.tensor)
    looks = [["node", where, shlex.quote(finding.node.name), *run], ["show", where, shown, *run]]
    if finding.run > 0 and is_session:
        looks.append(["history", where, shown])
    page.line()
    for place, words in enumerate(looks):
        page.command("" if place else "next", ["tensortap", *words])


def _contained(page: Page, report: Report) -> None:
    rows = [
        [str(each.run), each.tensor, str(each.health)]
        for single in report.reports
        for each in single.contained
    ]
    if rows:
        page.line()
        page.columns("ignored", rows)


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def not_looked_at(tensors: Sequence[str]) -> str:
    """What is said of tensors whose elements could not be read.

    >>> not_looked_at(["a:0"]), not_looked_at(["a:0", "b:0", "c:0"])
    ('1 tensor was not looked at (a:0)', '3 tensors were not looked at (a:0, b:0 and 1 more)')
    """
    shown = ", ".join(tensors[:2]) + (f" and {len(tensors) - 2} more" if len(tensors) > 2 else "")
    return f"{_many(len(tensors), 'tensor')} {'was' if len(tensors) == 1 else 'were'} not looked at ({shown})"


def short_function(name: str) -> str:
    """The name of a function without what it is nested in.

    >>> short_function("main.<locals>.step"), short_function("Model.forward")
    ('step', 'Model.forward')
    """
    return name.rpartition("<locals>.")[2]


def short_path(path: str) -> str:
    """A path as one would type it here; without the place where packages are installed.

    >>> short_path("/somewhere/else.py")
    '/somewhere/else.py'
    >>> short_path("/usr/lib/python3.11/site-packages/transformers/activations.py")
    'transformers/activations.py'
    """
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    shown = relative if not relative.startswith("..") and len(relative) < len(path) else path
    installed = _INSTALLED.search(shown)
    return shown[installed.end() :] if installed else shown
