"""`tensortap ls`: what was dumped."""

from __future__ import annotations

import argparse
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tensortap.commands.common import (
    add_run_arguments,
    open_directory,
    open_run,
    print_json,
    print_table,
    say,
    size_text,
)

if TYPE_CHECKING:
    from tensortap.reader import DebugDumpDir, DebugTensorDatum, SessionDir

HELP = "list the runs of a session, or the tensors of a run"
DESCRIPTION = """List what was dumped.

A session directory is listed run by run: step, tensors, size, how many tensors had NaN or infinite elements,
and what was dropped. With --run, or on a run directory, its tensors are listed in order of time.

  tensortap ls dumps                    all runs
  tensortap ls dumps --bad              only runs with NaN or infinite elements
  tensortap ls dumps --run -1           tensors of the last run
  tensortap ls dumps --run 3 -n attn    tensors of run 3 whose name contains attn
  tensortap ls dumps --run 3 --bad      only those with NaN or infinite elements
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
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.reader import SessionDir

    found = open_directory(options.directory)
    if isinstance(found, SessionDir) and options.run is None:
        if options.name is not None or options.sort != "time":
            raise ValueError("-n and -s are about the tensors of a run; name one with --run.")
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
    if options.json:
        print_json({"directory": str(session.root), "runs": rows, "notices": session.notices})
        return 0
    print_table(
        ("run", "task", "step", "started", "tensors", "size", "bad", "dropped", "status"),
        [
            (
                row["run"],
                row.get("task", "?"),
                row.get("step", "?"),
                row.get("started", "?"),
                row.get("tensors", "?"),
                size_text(row["bytes"]) if "bytes" in row else "?",
                _or_dash(row.get("bad")),
                row.get("dropped", "?"),
                row.get("status") or row["error"],
            )
            for row in rows
        ],
        right=("run", "task", "step", "tensors", "size", "bad", "dropped"),
    )
    say(session.notices)
    return 0


def _describe_run(run: DebugDumpDir, index: int, timestamp: int, look: bool) -> dict[str, Any]:
    data = run.dumped_tensor_data
    metadata = run.source.core_metadata
    judged = [
        bad for bad in (_is_bad(datum, look) for datum in data if not _is_unread(datum)) if bad is not None
    ]
    counts = run.counts
    notices = run.notices
    return {
        "run": index,
        "name": run.dump_root.name,
        "task": run.source.task,
        "step": metadata[0].global_step if metadata else -1,
        "started": datetime.fromtimestamp(timestamp / 1e6).strftime("%Y-%m-%d %H:%M:%S"),
        "tensors": len(data),
        "bytes": sum(datum.dump_size_bytes or 0 for datum in data),
        "bad": sum(judged) if judged else None,
        "dropped": counts.get("dropped", 0),
        "counts": counts,
        "status": run.error or ("incomplete" if notices else "complete"),
        "notices": notices,
    }


def _list_tensors(run: DebugDumpDir, options: argparse.Namespace) -> int:
    rows = [_describe_tensor(run, datum, look=options.bad) for datum in _chosen(run, options)]
    if options.bad:
        rows = [row for row in rows if row["bad"]]
    if options.sort != "time":
        keys = {"size": "bytes", "name": "tensor", "op": "op"}
        rows.sort(key=lambda row: row[keys[options.sort]] or 0, reverse=options.sort == "size")
    if options.json:
        print_json({"run": str(run.dump_root), "tensors": rows, "counts": run.counts, "notices": run.notices})
        return 0
    print_table(
        ("t (ms)", "size", "debug op", "op", "health", "tensor"),
        [
            (
                f"{row['milliseconds']:.3f}",
                size_text(row["bytes"]),
                row["debug_op"],
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


def _chosen(run: DebugDumpDir, options: argparse.Namespace) -> list[DebugTensorDatum]:
    data = run.dumped_tensor_data
    if options.name is None:
        return data
    try:
        pattern = re.compile(options.name)
    except re.error as error:
        raise ValueError(f"{options.name!r} is no regular expression: {error}.") from None
    return [datum for datum in data if pattern.search(datum.tensor_name)]


def _describe_tensor(run: DebugDumpDir, datum: DebugTensorDatum, look: bool) -> dict[str, Any]:
    from tensortap.analyze.health import NOT_LOOKED_AT

    bad = _is_bad(datum, look)
    health: str | None = None if bad is None else "bad" if bad else "good"
    if _is_unread(datum):
        bad, health = None, NOT_LOOKED_AT
    if bad and datum.debug_op == "DebugNumericSummary":
        health = _health_text(_pill(datum))
    elif bad and datum.debug_op == "DebugNanCount":
        count: Any = datum.get_tensor()
        health = f"{int(count[0])} nan"
    return {
        "tensor": datum.tensor_name,
        "debug_op": datum.debug_op,
        "device": datum.device_name,
        "op": _op_type(run, datum),
        "milliseconds": (datum.timestamp - (run.t0 or datum.timestamp)) / 1000,
        "bytes": datum.dump_size_bytes,
        "bad": bad,
        "health": health,
    }


def _op_type(run: DebugDumpDir, datum: DebugTensorDatum) -> str:
    try:
        return str(run.node_op_type(datum.node_name, datum.device_name))
    except (LookupError, ValueError):  # a run that died before its graph was stored
        return "?"


def _pill(datum: DebugTensorDatum) -> list[float]:
    value: Any = datum.get_tensor()
    return [float(each) for each in value] if getattr(value, "size", 0) >= 14 else [0.0] * 14


def _is_unread(datum: DebugTensorDatum) -> bool:
    """Whether nobody could look at the elements of a tensor."""
    if datum.debug_op != "DebugNumericSummary":
        return False
    value: Any = datum.get_tensor()
    return getattr(value, "size", 0) >= 14 and not value[0]


def _is_bad(datum: DebugTensorDatum, look: bool) -> bool | None:
    """Whether a tensor had NaN or infinite elements; None if only reading the whole value would tell."""
    from tensortap.reader import has_inf_or_nan

    if datum.debug_op == "DebugHash" or (datum.debug_op == "DebugIdentity" and not look):
        return None
    return has_inf_or_nan(datum, datum.get_tensor())


def _health_text(pill: list[float]) -> str:
    named = {"nan": pill[2], "-inf": pill[3], "+inf": pill[7]}
    return ", ".join(f"{int(n)} {name}" for name, n in named.items() if n) or "good"


def _or_dash(value: Any) -> Any:
    return "-" if value is None else value
