"""`tensortap health`: how training is doing, run by run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import (
    add_output_arguments,
    add_run_arguments,
    checked_regex,
    open_directory,
    open_run,
    print_json,
    say,
)
from tensortap.records.task import task_name

if TYPE_CHECKING:
    from tensortap.analyze.checks import CheckFinding
    from tensortap.analyze.overview import Overview

HELP = "show the health of every run, or of every tensor of one; also while it grows"
DESCRIPTION = """Show how training is doing: bad tensors, loss, norm of gradients and
parameters, largest value, run by run.

What is silently wrong (tensortap check) is told below the runs.
Ranks that did not finish, and processes that were not watched, are told below.
With --run, or on a run directory, the health of its tensors is listed.
--follow waits for more runs until Ctrl-C.

  tensortap health dumps                       every run
  tensortap health dumps --follow              and those to come
  tensortap health dumps --run -1              the tensors of the last run
  tensortap health dumps --run 3 -n grad -s magnitude
                                               gradients, largest first
"""

SORT_KEYS = ("time", "magnitude", "std", "zero")
_WIDTHS = (5, 5, 7, 5, 5, 10, 10, 10, 10)
_HEADINGS = ("run", "step", "tensors", "nan", "inf", "loss", "grad norm", "weights", "largest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_run_arguments(parser)
    parser.add_argument(
        "-n", "--name", metavar="REGEX", help="with --run: only tensors whose name contains this"
    )
    parser.add_argument(
        "-s", "--sort", choices=SORT_KEYS, default="time", help="with --run: order of the tensors"
    )
    parser.add_argument("--follow", action="store_true", help="wait for more runs")
    parser.add_argument(
        "--every", type=float, default=0.5, metavar="SECONDS", help="how often to look (default 0.5)"
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.reader import SessionDir

    if options.follow:
        _wait_for_directory(options)
    found = open_directory(options.directory)
    # -n and -s are about the tensors of a run; without one it is the run that is meant.
    asks_of_tensors = options.name is not None or options.sort != "time"
    if (
        not isinstance(found, SessionDir)
        or options.run is not None
        or (asks_of_tensors and not options.follow)
    ):
        return _tensors(options)
    return _follow(found, options) if options.follow else _runs(found, options)


def _runs(session: Any, options: argparse.Namespace) -> int:
    from tensortap.report.answer import not_looked_at
    from tensortap.report.page import progress

    rows = [
        row
        for ref in progress(session.runs, len(session.runs), "runs")
        if (row := _overview(ref)) is not None and options.task in (None, row.rank)
    ]
    coverage = session.coverage()
    findings = _findings(session, options.task)
    if options.json:
        print_json(
            {
                "runs": [each.as_dict() for each in rows],
                "findings": [each.as_dict() for each in findings],
                "coverage": coverage.as_dict(),
                "notices": session.notices,
            }
        )
    else:
        _heading()
        for row in rows:
            _line(row, len({each.rank for each in rows}) > 1)
        _list(findings)
        unread = session.not_looked_at()
        said = [f"{not_looked_at(unread)}."] if unread else []
        say([*coverage.sentences, *coverage.remarks, *said, *session.notices])
    return 0


def _findings(session: Any, task: int | None) -> list[CheckFinding]:
    """What is silently wrong, as far as it is told."""
    from tensortap.analyze.accepted import accepted_near
    from tensortap.analyze.checks import check_session, told

    return told(check_session(session, accept=accepted_near(Path.cwd()), task=task))


def _list(findings: list[CheckFinding]) -> None:
    from tensortap.report.check import spoken

    if findings:
        print()
    for finding in findings:
        print(f"{'wrong' if finding.is_sure else 'likely wrong'}: {spoken(finding)}")


def _overview(ref: Any) -> Overview | None:
    from tensortap.analyze.facts import facts_of_dump
    from tensortap.analyze.overview import overview_of

    try:
        return overview_of(facts_of_dump(ref.open(validate=False)))
    except (OSError, ValueError) as error:
        say([f"The run {ref.name} cannot be read: {error}"])
        return None


def _wait_for_directory(options: argparse.Namespace) -> None:
    """A program that has only just been started has not made its directory yet."""
    said = False
    while True:
        try:
            open_directory(options.directory)
        except ValueError as error:
            if "is a file" in str(error):
                raise
        else:
            return
        if not said:
            say([f"Waiting for {str(options.directory)!r}; Ctrl-C ends."])
            said = True
        time.sleep(options.every)


def _follow(session: Any, options: argparse.Namespace) -> int:
    """Print runs as they are finished; one that is not is waited for as long as the process lives that writes it."""
    if not options.json:
        _heading()
    shown: set[str] = set()
    try:
        while True:
            session.refresh()
            waiting = [ref for ref in session.runs if ref.name not in shown]
            for ref in waiting:
                if not _is_over(ref, session):
                    continue
                shown.add(ref.name)
                row = _overview(ref)
                if row is None or options.task not in (None, row.rank):
                    continue
                if options.json:
                    _json_line(row)
                else:
                    _line(row, False)
            time.sleep(options.every)
    except KeyboardInterrupt:
        return 0


def _is_over(ref: Any, session: Any) -> bool:
    from tensortap.store.stored_run import open_run

    try:
        source = open_run(ref.path)
    except (OSError, ValueError):
        return ref is not session.runs[-1]
    if getattr(source, "status", "finished") != "running":
        return True
    return not any(each.rank == source.task and each.lives for each in session.coverage().ranks)


def _json_line(row: Overview) -> None:
    import json

    from tensortap.report.plain import plain

    print(json.dumps(plain(row.as_dict()), allow_nan=False), flush=True)


def _heading() -> None:
    cells = [heading.rjust(width) for heading, width in zip(_HEADINGS, _WIDTHS, strict=True)]
    print(" ".join(cells), flush=True)


def _line(row: Overview, with_rank: bool) -> None:
    from tensortap.report.page import Page

    numbers = (row.loss, row.gradients, row.parameters, row.largest)
    cells = [
        str(row.run),
        str(row.step),
        str(row.tensors),
        str(row.nan or "-"),
        str(row.inf or "-"),
        *("-" if each is None else f"{each:.4g}" for each in numbers),
    ]
    texts = [cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)]
    page = Page()
    style = "red" if row.nan or (row.loss is not None and row.loss != row.loss) else ""
    page.line((" ".join(texts), style), f"  {task_name(row.rank)}" if with_rank else "")
    page.show()


def _tensors(options: argparse.Namespace) -> int:
    from tensortap.analyze.facts import facts_of_dump
    from tensortap.report.page import Page
    from tensortap.report.words import health_piece

    facts = facts_of_dump(open_run(options))
    pattern = checked_regex(options.name)
    rows = [(tensor, health) for tensor, health in facts if pattern is None or pattern.search(tensor)]
    if options.sort == "zero":
        rows.sort(key=lambda row: -(row[1].zero / max(row[1].elements, 1)))
    elif options.sort == "std":
        rows.sort(key=lambda row: -row[1].variance if row[1].variance >= 0 else 0.0)
    elif options.sort == "magnitude":
        rows.sort(key=lambda row: (not row[1].is_bad, -row[1].magnitude))
    if options.json:
        described = [{"tensor": tensor, "health": health.as_dict()} for tensor, health in rows]
        print_json({"run": facts.info.index, "step": facts.info.global_step, "tensors": described})
        return 0
    page = Page()
    page.table(
        ["mean", "std", "zero", "tensor", "health"],
        [
            [
                f"{health.mean:.3g}" if health.finite else "-",
                f"{health.variance**0.5:.3g}" if health.finite and health.variance >= 0 else "-",
                f"{100 * health.zero / health.elements:.0f}%" if health.elements and health.zero else "-",
                tensor,
                health_piece(health),
            ]
            for tensor, health in rows
        ],
        right=("mean", "std", "zero"),
    )
    page.show()
    say(facts.notices)
    return 0
