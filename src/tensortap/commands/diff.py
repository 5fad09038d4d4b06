"""`tensortap diff`: where two runs part."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import (
    add_output_arguments,
    first_bad_run,
    open_directory,
    print_json,
    run_name,
    say,
)
from tensortap.errors import UsageError

if TYPE_CHECKING:
    from tensortap.analyze.diff import Diff
    from tensortap.reader import DebugDumpDir, SessionDir
    from tensortap.report.page import Page, Piece

HELP = "compare two runs or sessions: the first tensor that differs"
DESCRIPTION = """Compare two runs, or two sessions run by run, and name the first tensor that
differs.

Tensors are matched by name, the rest by operation and order. Values are
compared where both have them, else health pills or hashes; how much may differ
depends on the dtype. The exit code is 0 if nothing differs, 1 if something
does, 2 for mistakes.

  tensortap diff dumps                            the first bad run and the last
                                                  good one before it
  tensortap diff before after                     all runs of two sessions
  tensortap diff before after --run 3             run 3 of both
  tensortap diff dumps --run 3 --other-run 4      two runs of one session
  tensortap diff dumps --task 0 --other-task 1    two ranks
  tensortap diff before after --rtol 1e-3         with a tolerance of your own
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("left", type=Path, metavar="DIR", help="a session directory, or one run in it")
    parser.add_argument(
        "right", type=Path, metavar="OTHER", nargs="?", help="the other; the same one by default"
    )
    parser.add_argument("-r", "--run", type=int, metavar="N", help="number of the run")
    parser.add_argument(
        "--other-run", type=int, metavar="N", help="number of the other run; the same by default"
    )
    parser.add_argument("--task", type=int, metavar="RANK", help="whose run")
    parser.add_argument("--other-task", type=int, metavar="RANK", help="whose other run; the same by default")
    parser.add_argument(
        "--rtol", type=float, metavar="X", help="relative tolerance instead of that of the dtype"
    )
    parser.add_argument(
        "--atol", type=float, metavar="X", help="absolute tolerance instead of that of the dtype"
    )
    parser.add_argument(
        "-n", "--most", type=int, default=10, metavar="N", help="how many to list (default 10)"
    )
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.analyze.diff import diff_runs
    from tensortap.analyze.facts import facts_of_dump
    from tensortap.report.page import progress

    pairs = _pairs(options)
    diff = None
    compared = tensors = 0
    for left, right in progress(pairs, len(pairs), "runs"):
        diff = diff_runs(
            facts_of_dump(left), facts_of_dump(right), relative=options.rtol, absolute=options.atol
        )
        compared += 1
        tensors += len(diff.compared)
        if not diff.is_same:
            break
    assert diff is not None
    if not tensors:
        raise UsageError("The two runs have no recorded tensor in common.")
    if options.json:
        print_json(_as_dict(diff, compared, tensors))
    else:
        _page(diff, compared, tensors, options).show()
        say(_notes(diff))
    return 0 if diff.is_same else 1


def _pairs(options: argparse.Namespace) -> list[tuple[DebugDumpDir, DebugDumpDir]]:
    """The runs to compare."""
    from tensortap.reader import SessionDir

    left = open_directory(options.left)
    right = left if options.right is None else open_directory(options.right)
    other_run = options.run if options.other_run is None else options.other_run
    other_task = options.task if options.other_task is None else options.other_task
    same = options.right is None and options.run == other_run and options.task == other_task
    if same and options.run is None and isinstance(left, SessionDir):
        return [_around_first_bad(left, options)]
    if same:
        raise UsageError("Name a second directory, another run (--other-run) or another rank (--other-task).")
    both = isinstance(left, SessionDir) and isinstance(right, SessionDir)
    if (
        isinstance(left, SessionDir)
        and isinstance(right, SessionDir)
        and options.run is None
        and other_run is None
    ):
        numbers = sorted({each.index for each in left.runs} & {each.index for each in right.runs})
        if not numbers:
            raise UsageError(
                "The two sessions have no run number in common; name runs with --run and --other-run."
            )
        return [(_open(left, n, options.task), _open(right, n, other_task)) for n in numbers]
    if both and (options.run is None or other_run is None):
        raise UsageError("--other-run needs --run.")
    return [(_open(left, options.run, options.task), _open(right, other_run, other_task))]


def _around_first_bad(session: SessionDir, options: argparse.Namespace) -> tuple[DebugDumpDir, DebugDumpDir]:
    """The last run before the first bad one, and that one; of one rank."""
    bad = first_bad_run(session, options.task)
    if bad is None:
        raise UsageError("No run is bad; name two with --run and --other-run, or a second directory.")
    number, rank = bad.source.core_metadata[0].session_run_index, bad.source.task
    for ref in sorted(session.runs, key=lambda each: (each.index, each.timestamp), reverse=True):
        if ref.index < number:
            before = ref.open(validate=False)
            if before.source.task == rank:
                options.notes.append(f"Run {ref.index}, and run {number}, the first bad one.")
                return before, bad
    raise UsageError(f"{run_name(bad)}, the first bad one, has none before it to compare it with.")


def _open(found: Any, number: int | None, task: int | None) -> DebugDumpDir:
    from tensortap.reader import DebugDumpDir, SessionDir

    if isinstance(found, DebugDumpDir):
        return found
    assert isinstance(found, SessionDir)
    return found.run(-1 if number is None else number, task=task, validate=False)


def _notes(diff: Diff) -> list[str]:
    notes = [*diff.left.notices, *(each for each in diff.right.notices if each not in diff.left.notices)]
    if diff.unknown:
        notes.append(f"{diff.unknown} tensors have no record that could be compared.")
    return notes


def _as_dict(diff: Diff, compared: int, tensors: int) -> dict[str, Any]:
    first = diff.first
    node = None if first is None else diff.left.node_of(first.left)
    return {
        "is_same": diff.is_same,
        "runs": compared,
        "run": diff.left.info.index,
        "other_run": diff.right.info.index,
        "compared": tensors if diff.is_same else len(diff.compared),
        "first": None
        if first is None
        else {
            **first.as_dict(),
            "op_type": None if node is None else node.op_type,
            "source": None if node is None or node.source is None else str(node.source),
        },
        "differing": [each.as_dict() for each in diff.differing],
        "only_left": list(diff.only_left),
        "only_right": list(diff.only_right),
        "renamed": {each.left: each.right for each in diff.compared if each.left != each.right},
        "unknown": diff.unknown,
        "notices": _notes(diff),
    }


def _page(diff: Diff, compared: int, tensors: int, options: argparse.Namespace) -> Page:
    from tensortap.report.answer import SHOWN_INPUTS, short_function, short_path
    from tensortap.report.page import Page

    page = Page()
    first = diff.first
    bases = sorted({each.basis for each in diff.compared})
    basis = f" by {' and '.join(bases)}" if bases else ""  # the last run may have recorded nothing
    if first is None:
        runs = f"{compared} run{'s' if compared != 1 else ''}, " if compared != 1 else ""
        page.line(("✓ same", "bold green"), f"  {runs}{tensors:,} tensors{basis}")
    else:
        pair = f"run {diff.left.info.index}"
        if diff.right.info.index != diff.left.info.index:
            pair += f" and run {diff.right.info.index}"
        page.line(
            ("✗ different", "bold red"),
            f"  {len(diff.differing)} of {len(diff.compared)} tensors{basis}, {pair}",
        )
        page.line()
        page.columns("first", [[(first.left, "bold"), (first.detail, "red")]])
        if first.right != first.left:
            page.field("", f"it is called {first.right} in the other")
        node = diff.left.node_of(first.left)
        if node is not None:
            page.field("op", node.op_type)
            if node.source is not None:
                page.field(
                    "line",
                    f"{short_path(node.source.file)}:{node.source.line} in {short_function(node.source.function)}",
                )
                text = diff.left.source_line(node.source)
                if text:
                    page.code(text, "yellow")
            verdicts = {each.left: each for each in diff.compared}
            rows: list[list[Piece]] = [
                [each, _agreement(verdicts.get(each))] for each in dict.fromkeys(node.inputs)
            ]
            if rows:
                page.columns("inputs", rows[:SHOWN_INPUTS])
            if len(rows) > SHOWN_INPUTS:
                page.field("", f"and {len(rows) - SHOWN_INPUTS} more", "dim")
        page.line()
        rest = diff.differing
        page.columns(
            "largest", [[_share(each.difference), each.left, each.detail] for each in rest[: options.most]]
        )
        if len(rest) > options.most:
            page.field("", f"and {len(rest) - options.most} more (-n {len(rest)})", "dim")
    for label, names in (("only in", diff.only_left), ("only in", diff.only_right)):
        if names:
            is_left = names is diff.only_left
            side = options.left if is_left else options.right or options.left
            if options.right is None:
                side = f"run {(diff.left if is_left else diff.right).info.index}"
            page.field(label, f"{side}: {len(names)} tensors, such as {', '.join(names[:3])}", "dim")
    return page


def _agreement(comparison: Any) -> tuple[str, str]:
    if comparison is None:
        return "not compared", "dim"
    return ("same", "green") if comparison.is_same else (comparison.detail, "red")


def _share(difference: float) -> str:
    return f"{difference:.1e}" if difference != float("inf") else "-"
