"""`tensortap ls`: what was dumped."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import (
    add_output_arguments,
    add_run_arguments,
    checked_regex,
    open_directory,
    open_run,
    print_json,
    print_table,
    say,
    size_text,
)

if TYPE_CHECKING:
    from tensortap.analyze.listing import RecordRow
    from tensortap.reader import DebugDumpDir, SessionDir

HELP = "list the runs of a session, or the tensors of a run"
DESCRIPTION = """List what was dumped.

A session directory is listed run by run: step, tensors, size, how many tensors
had NaN or infinite elements, and what was dropped. With --run, -n or -s, or on
a run directory, tensors are listed in order of time: those of the first bad
run if none is named.

With --bad, infinities that are meant (masks) and bad values that come to
nothing are told apart: they are listed behind the others, and runs that have
nothing else are left out.

  tensortap ls dumps                    all runs
  tensortap ls dumps --bad              only runs with something bad
  tensortap ls dumps --run -1           tensors of the last run
  tensortap ls dumps -n attn            tensors of the first bad run by name
  tensortap ls dumps --run 3 --bad      only those with NaN or infinities
"""

SORT_KEYS = ("time", "size", "name", "op")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_run_arguments(parser)
    parser.add_argument("-n", "--name", metavar="REGEX", help="only tensors whose name contains this")
    parser.add_argument(
        "--bad",
        action="store_true",
        help="only what has NaN or infinite elements; reads whole values where no health was recorded",
    )
    parser.add_argument("-s", "--sort", choices=SORT_KEYS, default="time", help="order of the tensors")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.reader import SessionDir

    found = open_directory(options.directory)
    # -n and -s are about the tensors of a run; without one it is the run that is meant.
    if (
        isinstance(found, SessionDir)
        and options.run is None
        and options.name is None
        and options.sort == "time"
    ):
        return _list_runs(found, options)
    return _list_tensors(open_run(options), options)


def _list_runs(session: SessionDir, options: argparse.Namespace) -> int:
    rows = []
    for ref in session:
        try:
            row = _describe_run(ref.open(validate=False), ref.index, ref.timestamp, look=options.bad)
            if options.task in (None, row["task"]) and (row["bad"] or not options.bad):
                rows.append(row)
        except (OSError, ValueError) as error:
            rows.append({"run": ref.index, "name": ref.name, "error": str(error)})
    coverage = session.coverage()
    if options.json:
        print_json(
            {
                "directory": str(session.root),
                "runs": rows,
                "coverage": coverage.as_dict(),
                "notices": session.notices,
            }
        )
        return 0
    headings = ["run", "task", "step", "started", "tensors", "size", "bad", "meant", "dropped", "status"]
    if not options.bad:
        headings.remove("meant")
    print_table(
        headings,
        [
            (
                row["run"],
                row.get("task", "?"),
                row.get("step", "?"),
                row.get("started", "?")[5:],  # the year is known
                row.get("tensors", "?"),
                size_text(row["bytes"]) if "bytes" in row else "?",
                _or_dash(row.get("bad")),
                *([_or_dash(row.get("meant") or None)] if options.bad else []),
                row.get("dropped", "?"),
                row.get("status") or row["error"],
            )
            for row in rows
        ],
        right=("run", "task", "step", "tensors", "size", "bad", "meant", "dropped"),
    )
    say([*coverage.sentences, *coverage.remarks, *session.notices])
    return 0


def _describe_run(run: DebugDumpDir, index: int, timestamp: int, look: bool) -> dict[str, Any]:
    from tensortap.analyze.listing import list_records

    rows = list_records(run)
    metadata = run.source.core_metadata
    known = (row.is_bad(reads_values=look) for row in rows if row.was_read)
    judged = [bad for bad in known if bad is not None]
    bad, meant = sum(judged), 0
    if look and bad:
        marks = _marks(run)
        bad = sum(mark == "bad" for mark in marks.values())
        meant = len(marks) - bad
    counts = run.counts
    notices = run.notices
    return {
        "run": index,
        "name": run.dump_root.name,
        "task": run.source.task,
        "step": metadata[0].global_step if metadata else -1,
        "started": datetime.fromtimestamp(timestamp / 1e6).strftime("%Y-%m-%d %H:%M:%S"),
        "tensors": len(rows),
        "bytes": sum(row.datum.dump_size_bytes or 0 for row in rows),
        "bad": bad if judged else None,
        **({"meant": meant} if look else {}),
        "dropped": counts.get("dropped", 0),
        "counts": counts,
        "status": run.error or ("incomplete" if notices else "complete"),
        "notices": notices,
    }


def _list_tensors(run: DebugDumpDir, options: argparse.Namespace) -> int:
    from tensortap.analyze.listing import list_records

    pattern = checked_regex(options.name)
    chosen = list_records(run, lambda datum: pattern is None or bool(pattern.search(datum.tensor_name)))
    rows = [_describe_tensor(row, look=options.bad) for row in chosen]
    if options.bad:
        marks = _marks(run)
        rows = [row for row in rows if row["bad"]]
        for row in rows:
            row["standing"] = marks.get(row["tensor"], "bad")
            if row["standing"] != "bad":
                row["health"] = f"{row['health']} ({row['standing']})"
        rows.sort(key=lambda row: row["standing"] != "bad")
    if options.sort != "time":
        keys = {"size": "bytes", "name": "tensor", "op": "op"}
        rows.sort(key=lambda row: row[keys[options.sort]] or 0, reverse=options.sort == "size")
    if options.json:
        print_json({"run": str(run.dump_root), "tensors": rows, "counts": run.counts, "notices": run.notices})
        return 0
    print_table(
        ("t (ms)", "size", "record", "op", "health", "tensor"),
        [
            (
                f"{row['milliseconds']:.3f}",
                size_text(row["bytes"]),
                row["debug_op"].removeprefix("Debug"),
                row["op"],
                _or_dash(row["health"]),
                row["tensor"],
            )
            for row in rows
        ],
        right=("t (ms)", "size"),
    )
    dropped = {reason: n for reason, n in run.counts.items() if n and not reason.startswith("written")}
    say([*run.notices, *(f"{reason}: {n} records" for reason, n in dropped.items())])
    return 0


def _describe_tensor(row: RecordRow, look: bool) -> dict[str, Any]:
    datum = row.datum
    return {
        "tensor": datum.tensor_name,
        "debug_op": datum.debug_op,
        "device": datum.device_name,
        "op": row.op_type,
        "milliseconds": row.milliseconds,
        "bytes": datum.dump_size_bytes,
        "bad": row.is_bad(reads_values=look) if row.was_read else None,
        "health": row.health_words(reads_values=look),
    }


def _marks(run: DebugDumpDir) -> dict[str, str]:
    """What is really bad of what has NaN or infinite elements, by tensor."""
    from tensortap.analyze.facts import facts_of_dump
    from tensortap.analyze.first_bad import standing

    return standing(facts_of_dump(run))


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value
