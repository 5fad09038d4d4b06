"""`tensortap history`: one tensor over all runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tensortap.commands.common import add_output_arguments, open_directory, print_json, print_table, say
from tensortap.errors import NotThereError, UsageError

HELP = "show the health of one tensor over all runs"
DESCRIPTION = """Show the health of one tensor in every run of a session.

  tensortap history dumps model/fc/weight:0                  all runs
  tensortap history dumps gradients/model/fc/weight:0 -n 20  the last 20
  tensortap history dumps mean:0 --task 1                    of one rank
"""

COLUMNS = ("elements", "nan", "neg_inf", "pos_inf", "zero", "min", "max", "mean", "variance")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a session directory")
    parser.add_argument("tensor", metavar="TENSOR", help="node:slot")
    parser.add_argument("-n", "--last", type=int, metavar="N", help="only the last N runs")
    parser.add_argument("--task", type=int, metavar="RANK", help="only what this rank wrote")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.history import PLACE_COLUMNS, history_of
    from tensortap.analyze.names import full_name, meant
    from tensortap.reader import SessionDir

    session = open_directory(options.directory)
    if not isinstance(session, SessionDir):
        raise UsageError(f"{str(options.directory)!r} is a single run; name the session directory above it.")
    tensor = full_name(options.tensor)
    found = history_of(session, tensor, task=options.task, last=options.last)
    if not len(found) and not len(history_of(session, tensor)):
        raise NotThereError(f"No run recorded {tensor!r}.{meant(tensor, session.tensors())}")
    rows = [
        {name: int(each[name]) for name in PLACE_COLUMNS} | {name: float(each[name]) for name in COLUMNS}
        for each in found
    ]
    if options.json:
        print_json({"tensor": tensor, "runs": rows, "notices": session.notices})
        return 0
    _print(tensor, rows)
    say(session.notices)
    return 0


def _print(tensor: str, rows: list[dict[str, Any]]) -> None:
    from tensortap.pill import BAD_NAMES
    from tensortap.report.page import Page
    from tensortap.report.words import sparkline

    page = Page()
    sizes = [
        max(abs(row["min"]), abs(row["max"])) if row["max"] >= row["min"] else float("nan") for row in rows
    ]
    bad = sum(any(row[name] for name in BAD_NAMES) for row in rows)
    page.row(
        (tensor, "bold"),
        f"  {len(rows)} run{'' if len(rows) == 1 else 's'}, ",
        (f"{bad} bad", "red" if bad else "green"),
    )
    if len(rows) > 2:
        page.line(("largest absolute value  ", "dim"), sparkline(sizes, page.width - 26))
    page.line()
    page.show()
    tasks = len({row["task"] for row in rows}) > 1
    headings = ["run", "step", "nan", "inf", "zero", "min", "max", "mean", "std"]
    table = [
        [
            *([row["task"]] if tasks else []),
            row["run"],
            row["step"],
            _count(row["nan"]),
            _count(row["neg_inf"] + row["pos_inf"]),
            _share(row["zero"], row["elements"]),
            *(_number(row[name]) for name in ("min", "max", "mean")),
            _number(row["variance"] ** 0.5 if row["variance"] >= 0 else row["variance"]),
        ]
        for row in rows
    ]
    headings = [*(["rank"] if tasks else []), *headings]
    print_table(headings, table, right=headings)


def _count(number: float) -> str:
    return str(int(number)) if number else "-"


def _share(number: float, of: float) -> str:
    return f"{100 * number / of:.0f}%" if of and number else "-"


def _number(value: float) -> str:
    return "-" if value != value or abs(value) == float("inf") else f"{value:.4g}"
