"""What the page asks for besides: the answer, the grid of health, pictures of values, the graph around a node, marks
beside source lines, timelines. Worked out in `analyze/`, put into JSON here."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.analyze.checks import CheckFinding, told
from tensortap.analyze.findings import Report
from tensortap.analyze.graph import node_named
from tensortap.analyze.lines import is_bad, source_files
from tensortap.analyze.mosaic import Mosaic
from tensortap.analyze.neighbours import around, describe_node, path_to_loss
from tensortap.analyze.numbers import summarize
from tensortap.analyze.picture import MOST_CELLS, difference, histogram_of, picture_of
from tensortap.analyze.timeline import memory_over_time, read_step, time_by
from tensortap.analyze.values import FoundRecord, find_value
from tensortap.dtypes import DTYPE_NAMES
from tensortap.errors import NotThereError, UsageError
from tensortap.pill import PILL_OP
from tensortap.reader import DebugDumpDir, RunRef, SessionDir
from tensortap.report.answer import answer, not_looked_at, short_path
from tensortap.report.card import card_of, links_of
from tensortap.server.looks import Look
from tensortap.store.trace_file import TraceFileError, find_traces, read_trace

__all__ = [
    "answer_of",
    "findings_of",
    "grid",
    "lines",
    "node",
    "picture",
    "tile",
    "trace",
    "trace_paths",
    "traces",
]

_TEXT_COLUMNS = 100
_NAMED = 200
"""Tensors that a bad value has spread to, and those that came to nothing, which are named."""
MOST_TENSORS = 50_000
MOST_TILE_CELLS = 4 << 20


# --- the answer --------------------------------------------------------------------------------------


def answer_of(look: Look) -> dict[str, Any]:
    """The first bad value of a job, as `tensortap why` tells it; what it says as long as that is searched for."""
    facts: dict[str, Any] = {"version": look.answered, "searching": look.is_searching, "runs": look.runs}
    if look.answer is None:
        state = "problem" if look.problem else "empty" if look.answered else "searching"
        return {**facts, "state": state, "problem": look.problem}
    return {**facts, **look.answer, "problem": look.problem}


def describe_report(report: Report, session: SessionDir) -> dict[str, Any]:
    """A report with the words it is told in."""
    facts = report.as_dict()
    for finding in [facts["first_bad"] or {}, *facts["findings"]]:
        finding["spread"] = len(finding.get("propagators", ()))
        finding["propagators"] = list(finding.get("propagators", ()))[:_NAMED]
    facts["propagators"] = facts["propagators"][:_NAMED]
    facts["contained"] = facts["contained"][:_NAMED]
    times = [run.timestamp for run in session.runs if run.timestamp]
    return {
        "state": _state(report),
        "card": card_of(report),
        "links": links_of(report),
        "text": answer(report, width=_TEXT_COLUMNS).plain() if report.is_known else "",
        "since": min(times, default=None),
        "until": max(times, default=None),
        "unread": not_looked_at(report.unread) if report.unread else "",
        "report": facts,
    }


def _state(report: Report) -> str:
    if report.is_bad:
        return "bad"
    if not report.runs or not report.is_known:
        return "empty" if not report.runs else "unknown"
    return "healthy" if report.is_healthy else "unsure"


def findings_of(look: Look, task: int | None) -> dict[str, Any]:
    """What is silently wrong in the program of a job, as `tensortap check` tells it; on one rank or all."""
    shown = [each for each in look.findings["findings"] if task in (None, each["rank"])]
    return {"version": look.checked, **look.findings, "findings": shown}


def describe_findings(findings: Sequence[CheckFinding]) -> dict[str, Any]:
    """Findings with the words they are told in."""
    shown = told(findings)
    return {
        "findings": [
            {
                **each.as_dict(),
                "rank": each.rank,
                "function": "" if each.source is None else each.source.function,
                "place": "" if each.source is None else f"{short_path(each.source.file)}:{each.source.line}",
            }
            for each in shown
        ],
        "left_out": len(findings) - len(shown),
    }


# --- the grid ----------------------------------------------------------------------------------------


def grid(look: Look, task: int | None) -> dict[str, Any]:
    """What the rows and columns of the health grid are."""
    with look.lock:
        ranks = [] if look.mosaic is None else sorted(look.mosaic.by_rank)
        rank = _rank(look, ranks, task)
        mosaic = Mosaic() if rank is None or look.mosaic is None else look.mosaic.by_rank[rank]
        tensors, first_bad = mosaic.tensors[:MOST_TENSORS], mosaic.first_bad()
        facts = {
            "task": rank,
            "tasks": ranks,
            "version": 0 if look.mosaic is None else look.mosaic.version,
            "progress": 0.0 if look.mosaic is None else look.mosaic.progress,
            "columns": mosaic.columns,
            "stride": mosaic.stride,
            "runs": len(mosaic.runs),
            "tensors": tensors,
            "dtypes": [DTYPE_NAMES.get(int(each), "") for each in mosaic.dtypes[: len(tensors)]],
            "first_bad": first_bad[: len(tensors)],
            "left_out": len(mosaic.tensors) - len(tensors),
            "notices": [] if look.mosaic is None else look.mosaic.notices,
        }
    return {**facts, "phases": _phases(look, rank, tensors)}


def _rank(look: Look, ranks: Sequence[int], task: int | None) -> int | None:
    """Whose grid is meant: the rank that is named, that of the first bad value, or the first."""
    if task is not None:
        if task not in ranks and ranks:
            raise NotThereError(f"There is no rank {task}; there are {', '.join(map(str, ranks))}.")
        return task if ranks else None
    first = look.first_bad
    if first is not None and first["rank"] in ranks:
        return int(first["rank"])
    return ranks[0] if ranks else None


def _phases(look: Look, rank: int | None, tensors: Sequence[str]) -> list[str]:
    """The phase of each tensor, as the graph of a run tells it; empty where none does, and as long as much is read."""
    if rank is None or look.mosaic is None or not (look.mosaic.is_complete or look.has_facts):
        return ["" for _ in tensors]
    runs = look.mosaic.session.runs
    first = look.first_bad
    tried = [] if first is None else [run for run in runs if run.name == first["run_name"]]
    for run in [*tried, *runs[:-3:-1]]:
        try:
            nodes = look.facts(run).nodes
        except (OSError, ValueError, LookupError):
            continue
        if nodes:
            phase = getattr(nodes, "phase", lambda name: "")
            return [phase(tensor.rpartition(":")[0]) for tensor in tensors]
    return ["" for _ in tensors]


def tile(look: Look, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Part of the grid at the resolution of a screen.

    Args:
        look: at the job.
        asked: `task`, `rows` (of each row the ranges of tensors it joins), `from`, `to` and `columns`.
    """
    rows = _ranges(asked.get("rows"))
    begin, end, width = (_whole(asked, name) for name in ("from", "to", "columns"))
    if len(rows) * width > MOST_TILE_CELLS:
        raise UsageError(f"{len(rows)} rows of {width} columns are more than a screen has.")
    with look.lock:
        ranks = [] if look.mosaic is None else sorted(look.mosaic.by_rank)
        task = asked.get("task")
        rank = _rank(look, ranks, task if isinstance(task, int) else None)
        mosaic = Mosaic() if rank is None or look.mosaic is None else look.mosaic.by_rank[rank]
        found = mosaic.tile(rows, begin, end, width)
        places = [min(edge * mosaic.stride, max(len(mosaic.runs) - 1, 0)) for edge in found.edges]
        runs, steps = ([each[place] for place in places if each] for each in (mosaic.runs, mosaic.steps))
        version = 0 if look.mosaic is None else look.mosaic.version
    if found.edges[1:]:
        look.is_shown.set()
    planes = {name: getattr(found, name) for name in ("kinds", "sizes", "zeros")}
    return {
        "version": version,
        "edges": found.edges,
        "runs": runs,
        "steps": steps,
        **{name: base64.b64encode(plane.tobytes()).decode() for name, plane in planes.items()},
    }


def _ranges(rows: Any) -> list[list[tuple[int, int]]]:
    try:
        return [[(int(first), int(last)) for first, last in row] for row in rows]
    except (TypeError, ValueError):
        raise UsageError("rows must be lists of ranges such as [[[0, 4]], [[4, 5], [9, 10]]].") from None


def _whole(asked: Mapping[str, Any], name: str) -> int:
    number = asked.get(name)
    if not isinstance(number, int) or not 0 <= number < 1 << 31:
        raise UsageError(f"{name} must be a whole number, got {str(number)[:40]!r}.")
    return number


# --- one value ---------------------------------------------------------------------------------------


def picture(
    run: DebugDumpDir,
    tensor: str,
    execution: int,
    other: DebugDumpDir | None = None,
    other_tensor: str | None = None,
    most: int = MOST_CELLS,
) -> dict[str, Any]:
    """A recorded value as a picture with its histogram; beside that of another run, with their difference."""
    found, value = _value(run, tensor, execution)
    facts = {"tensor": found.datum.tensor_name, "executions": found.executions, **_pictured(value, most)}
    if other is None:
        return facts
    _, beside = _value(other, other_tensor or tensor, execution)
    facts["other"] = _pictured(beside, most)
    try:
        facts["difference"] = _pictured(difference(value, beside), most)
    except UsageError as error:
        facts["difference"] = {"problem": str(error)}
    return facts


def _value(run: DebugDumpDir, tensor: str, execution: int) -> tuple[FoundRecord, Any]:
    found = find_value(run, tensor, None, execution)
    if found.datum.debug_op == PILL_OP:
        raise NotThereError(
            f"Only the health of {found.datum.tensor_name!r} was recorded in this run, not its value."
        )
    value = found.value()
    if not hasattr(value, "dtype") or np.asarray(value).dtype.kind in "OSU":
        raise UsageError(
            f"{found.datum.tensor_name!r} holds {str(value)[:60]!r}, which is no array of numbers."
        )
    return found, np.asarray(value)


def _pictured(value: Any, most: int) -> dict[str, Any]:
    made, spread, numbers = picture_of(value, most), histogram_of(value), summarize(value)
    return {
        "dtype": str(value.dtype),
        "shape": list(made.shape),
        "shown": list(made.shown),
        "rows": made.means.shape[0],
        "columns": made.means.shape[1],
        "means": base64.b64encode(made.means.astype("<f4").tobytes()).decode(),
        "kinds": base64.b64encode(made.kinds.tobytes()).decode(),
        "is_whole": made.is_whole,
        "most": most,
        "histogram": None if spread is None else asdict(spread),
        "summary": None if numbers is None else asdict(numbers),
    }


# --- the graph and the source ------------------------------------------------------------------------


def node(look: Look, run: RunRef, name: str, depth: int) -> dict[str, Any]:
    """A node, what is around it, and its way to the loss."""
    facts = look.facts(run)
    found = node_named(facts, name)
    path = path_to_loss(facts, found)
    return {"node": describe_node(facts, found), **around(facts, found, depth), "path": path}


def lines(look: Look, run: RunRef, path: str | None) -> dict[str, Any]:
    """The source files of a run, with the number of bad nodes in each; or one with the nodes of its lines."""
    facts = look.facts(run)
    files = source_files(facts)
    if path is None:
        return {"files": [{"path": each.path, "nodes": each.nodes, "bad": each.bad} for each in files]}
    found = next((each for each in files if each.path == path), None)
    marks = {} if found is None else found.lines
    return {
        "path": path,
        "lines": [
            {
                "line": line,
                "nodes": [
                    {"name": each.name, "op": each.op_type, "bad": is_bad(facts, each)} for each in nodes
                ],
            }
            for line, nodes in sorted(marks.items())
        ],
    }


# --- timelines ---------------------------------------------------------------------------------------


def trace_paths(session: SessionDir) -> list[Path]:
    """The timelines in a session directory, or in its `timelines` folder."""
    try:
        return find_traces(session.root)
    except TraceFileError:
        return []


def traces(session: SessionDir) -> dict[str, Any]:
    """The timelines of a session."""
    return {
        "traces": [
            {"id": number, "name": str(path.relative_to(session.root)), "bytes": path.stat().st_size}
            for number, path in enumerate(trace_paths(session))
        ]
    }


def trace(path: Path, top: int = 30) -> dict[str, Any]:
    """Where time and memory of one timeline went."""
    read = read_trace(path)
    step = read_step(read)
    by = {"ops": lambda op: op.op_type, "nodes": lambda op: op.node, "lines": lambda op: op.line}
    return {
        "name": path.name,
        "step": step.step,
        "rank": step.rank,
        "micros": step.micros,
        "busy_micros": step.busy_micros,
        "left_out": list(step.left_out),
        "slowest": {
            name: [
                {"name": total.key, "micros": total.micros, "calls": total.calls, "share": total.share}
                for total in time_by([step], key)[:top]
            ]
            for name, key in by.items()
        },
        "peaks": [
            {
                "allocator": peak.allocator,
                "bytes": peak.nbytes,
                "micros": peak.micros,
                "count": peak.count,
                "tensors": [{"name": name, "bytes": nbytes} for name, nbytes in peak.tensors[:top]],
            }
            for peak in step.peaks
        ],
        "memory": memory_over_time(read.events),
    }
