"""`tensortap check`: what is silently wrong in a training program."""

from __future__ import annotations

import argparse
from pathlib import Path

from tensortap.commands.common import add_output_arguments, open_directory, print_json, say
from tensortap.errors import UsageError

HELP = "say what is silently wrong: parameters that are not trained, losses that are given the wrong thing"
DESCRIPTION = """Say what is silently wrong in a program whose loss looks plausible: parameters
that no optimizer has, gradients that are never cleared, a softmax too many.

Findings are worked out from what was recorded, of a program that is over or
still running. Each has a certainty: it is sure if it contradicts what the
program itself says, and likely if it usually is a mistake; of the likely ones
the three most telling are shown. What you know of can be accepted, for good
with a line in pyproject.toml: accept = ["KIND:SUBJECT"] in [tool.tensortap].
The exit code is 1 if something sure was found, 0 otherwise, 2 for mistakes.

  tensortap check dumps
  tensortap check dumps --all                  every likely finding, too
  tensortap check dumps -x same-batch:x        never mind this one
  tensortap check dumps --json | jq '.findings[].kind'
  tensortap explain gradients-not-cleared      the rule behind a kind
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a session directory")
    parser.add_argument("--task", type=int, metavar="RANK", help="only what this rank has recorded")
    parser.add_argument(
        "-x",
        "--exclude",
        action="append",
        default=[],
        metavar="KIND:SUBJECT",
        help="do not tell of this; wildcards are allowed",
    )
    parser.add_argument("-a", "--all", action="store_true", help="show all findings that are only likely")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.accepted import accepted_near
    from tensortap.analyze.checks import Account, check_session, told
    from tensortap.reader import SessionDir
    from tensortap.report.check import account_text, findings_page

    session = open_directory(options.directory)
    if not isinstance(session, SessionDir):
        raise UsageError(f"{str(options.directory)!r} is a single run; name the session it belongs to.")
    accept = [*(checked_kind(each) for each in options.exclude), *accepted_near(Path.cwd())]
    account = Account()
    findings = check_session(session, accept=accept, task=options.task, account=account)
    shown = findings if options.all else told(findings)
    if options.json:
        print_json({"findings": [each.as_dict() for each in shown], **account.as_dict()})
    elif shown:
        findings_page(shown, len(findings) - len(shown), len(session.tasks()) > 1).show()
    else:
        print("Nothing is known to be wrong.")
    if not options.json:
        say([*account_text(account), *session.notices])
    return int(any(each.is_sure for each in shown))


def checked_kind(text: str) -> str:
    """`KIND:SUBJECT` as a user typed it.

    Raises:
        UsageError: there is no such kind.
    """
    from tensortap.analyze.accepted import is_kind
    from tensortap.analyze.checks import RULES
    from tensortap.suggest import nearest

    if not is_kind(text, RULES):
        kind = text.partition(":")[0]
        more = nearest(kind, RULES, 1) or " `tensortap explain` lists them."
        raise UsageError(f"There is no kind of finding {kind!r}.{more}")
    return text
