"""`tensortap find`: tensors that answer a description."""

from __future__ import annotations

import argparse
from typing import Any

from tensortap.commands.common import (
    add_output_arguments,
    add_run_arguments,
    checked_regex,
    open_directory,
    open_run,
    print_json,
    say,
)

HELP = "find tensors by name, op, dtype or condition, over all runs"
DESCRIPTION = """Find recorded tensors, over all runs or in one. Without a condition those with
NaN or infinities are found.

  tensortap find dumps                                  everything bad
  tensortap find dumps 'max > 1e4'                      by a condition
  tensortap find dumps 'zero == elements' -n gradients  gradients all zero
  tensortap find dumps true --op softmax --run 3        by type of operation
  tensortap find dumps true --dtype float16 --first 5   by dtype, the first 5

A condition may use elements, nan, inf, neg_inf, pos_inf, negative, zero,
positive, min, max, magnitude, mean, std, variance and rank. The exit code is 0
if something was found, 1 if not.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_run_arguments(parser)
    parser.add_argument("condition", metavar="CONDITION", nargs="?", help="`true` for every tensor")
    parser.add_argument("-n", "--name", metavar="REGEX", help="only tensors whose name contains this")
    parser.add_argument("--op", metavar="REGEX", help="only operations whose type contains this")
    parser.add_argument("--dtype", metavar="REGEX", help="only dtypes that contain this")
    parser.add_argument("--first", type=int, metavar="N", help="stop after so many")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from itertools import islice

    from tensortap.analyze.filters import condition_of

    text = options.condition
    condition: Any = None
    if text is None:
        condition = lambda health: health.is_bad  # noqa: E731
    elif text.lower() != "true":
        condition = condition_of(text)
    matches = _matches(options, condition, is_default=text is None)
    found = list(islice(matches, options.first) if options.first and options.first > 0 else matches)
    if options.json:
        print_json([_as_dict(each) for each in found])
        return 0 if found else 1
    _print(found)
    return 0 if found else 1


def _matches(options: argparse.Namespace, condition: Any, *, is_default: bool) -> Any:
    from tensortap.analyze.facts import facts_of_dump
    from tensortap.analyze.find import find
    from tensortap.reader import SessionDir
    from tensortap.report.page import progress

    patterns = {
        "name": checked_regex(options.name),
        "op_type": checked_regex(options.op),
        "dtype": checked_regex(options.dtype),
    }
    opened = open_directory(options.directory)
    if not isinstance(opened, SessionDir) or options.run is not None:
        yield from find(facts_of_dump(open_run(options)), condition=condition, **patterns)
        return
    suspects = opened.suspects() if is_default else None
    runs = [run for run in opened.runs if suspects is None or run.name in suspects]
    for run in progress(runs, len(runs), "runs"):
        try:
            facts = facts_of_dump(run.open(validate=False))
        except (OSError, ValueError) as error:
            say([f"The run {run.name} cannot be read: {error}"])
            continue
        if options.task in (None, facts.info.task):
            yield from find(facts, condition=condition, **patterns)


def _as_dict(match: Any) -> dict[str, Any]:
    return {
        "run": match.run,
        "step": match.step,
        "rank": match.rank,
        "tensor": match.tensor,
        "op_type": None if match.node is None else match.node.op_type,
        "health": match.health.as_dict(),
    }


def _print(found: list[Any]) -> None:
    from tensortap.report.page import Page
    from tensortap.report.words import health_piece

    page = Page()
    if not found:
        page.line("Nothing was found.")
    else:
        page.table(
            ["run", "op", "tensor", "health"],
            [
                [
                    str(each.run),
                    ("?" if each.node is None else each.node.op_type, "cyan"),
                    each.tensor,
                    health_piece(each.health),
                ]
                for each in found
            ],
        )
    page.show()
