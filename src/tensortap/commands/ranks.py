"""`tensortap ranks`: which rank differs from the others, and where first."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tensortap.commands.common import NOT_ALL_SEEN, add_output_arguments, print_json, print_table, say
from tensortap.errors import UsageError
from tensortap.records.task import task_name
from tensortap.report.answer import short_path

if TYPE_CHECKING:
    from tensortap.analyze.findings import Report
    from tensortap.analyze.ranks import Difference, RankComparison

HELP = "compare the ranks of a job: which differs first"
DESCRIPTION = """Compare what the ranks of one job recorded, run by run.

Under `tensortap run`, every rank takes checksums of its parameters, gradients and buffers after steps of its
optimizers, and notes how long it works before it meets the others. Copies that were the same on all ranks and then
are not, copies that never were though they are meant to be (DDP, replicas of a DTensor), and ranks that the others
wait for are named.

A tensor that was the same on all ranks and then is not has diverged: parameters and reduced gradients should
never do that. What differs from the first run on, as activations do because every rank has its own data, is
counted and shown with --all. Health pills, hashes and NaN counts are compared, exactly. The rank that went bad
first is named, and so are ranks that did not finish, with the operation and the line they stand at.

The exit code is 1 if a rank went bad or copies that are meant to be the same are not, 3 if neither but one did not
finish or was not watched, 2 for mistakes and otherwise 0.

  tensortap ranks dumps                        the first tensors that diverged
  tensortap ranks dumps -n weight              only tensors whose name contains weight
  tensortap ranks dumps --op DebugIdentity     whole values
  tensortap ranks node0.tar.gz node1/          directories of several machines
"""

SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "directory",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="a session directory that all ranks wrote, or one of each machine; archives, too",
    )
    parser.add_argument(
        "-n", "--name", default="", metavar="TEXT", help="only tensors whose name contains this"
    )
    parser.add_argument(
        "--op", action="append", metavar="DEBUG_OP", help="which records to compare; repeatable"
    )
    parser.add_argument("--last", type=int, metavar="N", help="only the last N runs")
    parser.add_argument("-a", "--all", action="store_true", help="also what differs from the first run on")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.copies import compare_copies
    from tensortap.analyze.ranks import compare_ranks
    from tensortap.analyze.session import search_session
    from tensortap.commands.common import open_directories
    from tensortap.reader import SessionDir
    from tensortap.reader.rank_readings import COMPARED_OPS, rank_readings
    from tensortap.report.copies import copies_sentences
    from tensortap.store.copies import read_copies

    session = open_directories(options.directory)
    if not isinstance(session, SessionDir):
        raise UsageError(
            f"{str(options.directory[0])!r} is one run; name the session directory of all ranks."
        )
    if options.last is not None and options.last < 1:
        raise UsageError(f"--last must be at least 1, got {options.last}.")
    found = compare_ranks(
        rank_readings(session, options.op or COMPARED_OPS, part=options.name, last=options.last)
    )
    checks, unreadable = read_copies(Path(session.root))
    copies = compare_copies(checks)
    session.notices.extend(unreadable)
    report = search_session(session)
    coverage = report.coverage
    if options.json:
        bad = None if report.first_bad is None else report.first_bad.as_dict()
        print_json(
            {
                **found.as_dict(),
                "copies": copies.as_dict(),
                "first_bad": bad,
                "coverage": coverage.as_dict(),
                "notices": session.notices,
            }
        )
    else:
        _print_bad(report)
        for sentence in copies_sentences(copies):
            print(sentence)
        # Where checksums have told what ranks share, and that it is the same, no other tensor has to stay equal.
        _print(
            found, report, options, is_settled=bool(copies.steps) and copies.first is None and not options.op
        )
        say([*coverage.remarks, *session.notices])
    if report.is_bad or copies.first is not None:
        return 1
    return 0 if coverage.is_complete else NOT_ALL_SEEN


def _print_bad(report: Report) -> None:
    for sentence in report.coverage.sentences:
        print(sentence)
    bad = report.first_bad
    if bad is not None:
        line = "" if bad.source is None else f", {short_path(bad.source.file)}:{bad.source.line}"
        whom = " of those that were watched" if report.coverage.missing else ""
        who = task_name(bad.rank).capitalize()
        print(f"{who} went bad first{whom}: run {bad.run}, step {bad.step}, {bad.node.name}{line}.")


def _print(found: RankComparison, report: Report, options: argparse.Namespace, *, is_settled: bool) -> None:
    if not found.runs:
        print("No run was recorded by two ranks.")
        return
    named = ", ".join(map(str, found.ranks))
    print(f"{found.runs} runs of ranks {named} compared: {found.equal} watches equal in all of them.")
    if found.first is not None and is_settled:
        first = found.first
        print(
            f"\n{len(found.diverged)} watches of tensors that ranks do not share were equal at first and then not, "
            f"first {first.tensor} in run {first.run}."
        )
        if options.all:
            print()
            _print_differences(found.diverged, found)
    elif found.first is not None:
        first = found.first
        print(
            f"\n{first.tensor} diverged first: run {first.run}, step {first.step}, "
            f"{_who(first, found)}. It was equal in {first.equal_runs} runs before."
        )
        print()
        _print_differences(found.diverged, found)
    elif report.is_healthy:
        print("Nothing diverged.")
    else:
        print("Nothing diverged in what was recorded.")
    if found.different:
        print(
            f"\n{len(found.different)} watches differ from the first run on, first {found.different[0].tensor}."
        )
        if options.all:
            print()
            _print_differences(found.different, found)
    if found.missing:
        key, ranks = next(iter(found.missing.items()))
        print(
            f"\n{len(found.missing)} watches are missing on some rank: {key} on {', '.join(map(str, ranks))}."
        )


def _print_differences(differences: list[Difference], found: RankComparison) -> None:
    print_table(
        ("run", "step", "ranks", "debug op", "tensor"),
        [
            (each.run, each.step, _who(each, found), each.debug_op, each.tensor)
            for each in differences[:SHOWN]
        ],
        right=("run", "step"),
    )
    if len(differences) > SHOWN:
        print(f"… and {len(differences) - SHOWN} more (--json has all)")


def _who(difference: Difference, found: RankComparison) -> str:
    if len(difference.odd_ranks) == len(difference.values):
        return (
            "no two agree"
            if len(set(difference.values.values())) == len(difference.values)
            else "no majority"
        )
    ranks = difference.odd_ranks
    return f"rank{'s' if ranks[1:] else ''} {', '.join(map(str, ranks))}"
