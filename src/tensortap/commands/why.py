"""`tensortap why`: which operation made the first bad value."""

from __future__ import annotations

import argparse

from tensortap.commands.common import (
    NOT_ALL_SEEN,
    add_output_arguments,
    add_run_arguments,
    open_directory,
    print_json,
    say,
)
from tensortap.errors import UsageError

HELP = "say which operation made the first bad value, and why"
DESCRIPTION = """Say which operation made the first NaN or infinity: node, module, line, step,
rank, inputs and cause.

All runs are searched, or one with --run. Infinities that are meant (masks) and
bad values that come to nothing are no alarm.

Ranks that were killed, hang or failed are named, with the operation and the
line they stand at, and so are processes that nobody watched. The exit code is
0 if everything is healthy, 1 if something bad was found, 2 for mistakes, and 3
if nothing bad was found but not all was seen: a rank did not finish, or a
process was not watched.

  tensortap why dumps                           the first bad value of all runs
  tensortap why dumps --run 3                   of one run
  tensortap why dumps --exclude 'attn/.*mask'   never mind nodes of this name
  tensortap why dumps --filter 'max > 1e4'      what first exceeded a limit
  tensortap why dumps --filter 'zero / elements > 0.99 and elements > 100'
  tensortap why dumps --json | jq .first_bad    for scripts
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    from tensortap.analyze.filters import PILL_NAMES

    add_run_arguments(parser)
    parser.add_argument(
        "-x", "--exclude", metavar="REGEX", help="nodes in whose name this is found are never bad"
    )
    parser.add_argument(
        "-f",
        "--filter",
        metavar="CONDITION",
        help="what is bad instead of NaN and infinities: a condition over the numbers of a health pill "
        f"({' '.join(PILL_NAMES)})",
    )
    parser.add_argument("-a", "--all", action="store_true", help="show also what came to nothing")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.filters import condition_of
    from tensortap.analyze.session import search_run, search_session
    from tensortap.commands.common import checked_regex, open_run
    from tensortap.reader import SessionDir
    from tensortap.report.answer import answer
    from tensortap.report.page import progress

    checked_regex(options.exclude)
    condition = None if options.filter is None else condition_of(options.filter)
    found = open_directory(options.directory)
    if isinstance(found, SessionDir) and options.run is None:
        report = search_session(
            found,
            exclude=options.exclude,
            condition=condition,
            task=options.task,
            progress=lambda runs, total: progress(runs, total, "runs"),
        )
    else:
        session = found if isinstance(found, SessionDir) else None
        report = search_run(open_run(options), session, exclude=options.exclude, condition=condition)
    if not report.is_known:
        raise UsageError(
            f"No health was recorded in {str(options.directory)!r}, so nothing can be said; watch with the debug op "
            "DebugNumericSummary."
        )
    if options.json:
        print_json(report.as_dict())
    else:
        answer(report, show_contained=options.all).show()
        say(report.notices)
    if report.is_bad:
        return 1
    return 0 if report.is_healthy else NOT_ALL_SEEN
