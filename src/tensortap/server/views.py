"""What the HTTP interface says about jobs and runs, read from their directories."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.exceptions import HTTPException

from tensortap.analyze.health import Health
from tensortap.analyze.history import history_of, joined
from tensortap.analyze.listing import RecordRow, list_records, pill_numbers
from tensortap.analyze.ranks import compare_ranks
from tensortap.analyze.values import NoSuchTensor, find_value
from tensortap.errors import DamagedValueError, NotThereError
from tensortap.pill import PILL_OP
from tensortap.reader import DebugDumpDir, SessionDir
from tensortap.reader.rank_readings import rank_readings
from tensortap.reader.session_dir import RunRef
from tensortap.server.gates import Hit
from tensortap.server.job import Job
from tensortap.server.recorded import RecordedJob
from tensortap.store.description import RUNNING, read_description
from tensortap.store.stored_run import open_run as open_stored_run
from tensortap.suggest import nearest
from tensortap.wire.values import numpy_dtype

__all__ = [
    "describe_hit",
    "describe_job",
    "describe_run",
    "find_run",
    "graph",
    "health",
    "list_runs",
    "list_tensors",
    "open_run",
    "ranks",
    "source",
    "tensor_names",
    "value_as_json",
    "value_of",
]

ELEMENTS_AT_ONCE = 100_000
"""In JSON; for more there are slices, and NumPy files."""
_PEEK_ELEMENTS = 16
LAST = "last"

AnyJob = Job | RecordedJob


def session_of(job: AnyJob) -> SessionDir:
    """The session directory of a job."""
    try:
        return job.session()
    except OSError:
        raise HTTPException(404, f"Nothing was received of job {job.name!r} yet.") from None


def find_run(job: AnyJob, name: str, task: int | None = None) -> RunRef:
    """One run by the name of its directory or by its number, which several ranks may have; `last` is the newest."""
    session = session_of(job)
    if name == LAST and session.runs:
        return session.runs[-1]
    named = [ref for ref in session.runs if name in (ref.name, str(ref.index))]
    found = named
    if len(named) > 1 and task is not None:
        found = [ref for ref in named if _task_of(ref) == task]
    if not found:
        rank = f" of rank {task}" if named else ""
        raise HTTPException(
            404, f"Job {job.name!r} has no run {name[:80]!r}{rank}; it has {len(session.runs)} runs."
        )
    return found[-1]


def _task_of(ref: RunRef) -> int | None:
    try:
        return open_stored_run(ref.path).task
    except (OSError, ValueError):
        return None


def open_run(job: AnyJob, name: str, task: int | None = None) -> DebugDumpDir:
    """The same run, opened."""
    ref = find_run(job, name, task)
    try:
        return ref.open(validate=False)
    except (OSError, ValueError) as error:
        raise HTTPException(404, f"The run {ref.name} cannot be read: {error}") from None


def describe_job(job: AnyJob) -> dict[str, Any]:
    """A job in a few facts."""
    runs: list[RunRef] = []
    tasks: list[int] = []
    if job.directory.is_dir():
        session = job.session()
        runs, tasks = session.runs, session.tasks()
    return {
        "id": job.id,
        "name": job.name,
        "is_live": job.is_live,
        "directory": str(job.directory.absolute()),
        "runs": len(runs),
        "receiving": job.open_runs,
        "tasks": tasks,
        "newest_run": runs[-1].name if runs else None,
        "gates": sum(state != "closed" for state in job.gates.states().values()),
        "waiting_at_breakpoints": len(job.gates.hits()),
        "alerts": len(job.alerts.report()),
    }


def list_runs(job: AnyJob, task: int | None, limit: int | None) -> dict[str, Any]:
    """The last runs of a job, newest last."""
    session = session_of(job)
    rows: list[dict[str, Any]] = []
    for ref in reversed(session.runs):
        if len(rows) == limit:
            break
        try:
            row = _summary(ref)
        except (OSError, ValueError) as error:
            row = {"name": ref.name, "run": ref.index, "task": None, "error": str(error)}
        if task in (None, row["task"]):
            rows.append(row)
    return {"runs": rows[::-1], "total": len(session.runs), "notices": session.notices}


def _summary(ref: RunRef) -> dict[str, Any]:
    """A run in one line, from its description alone; of one that is not over, the records are counted."""
    description = read_description(ref.path)
    counts = description.counts
    records, nbytes = counts.get("written"), counts.get("written_bytes")
    if description.status == RUNNING:
        data = ref.open(validate=False).dumped_tensor_data
        records, nbytes = len(data), sum(datum.dump_size_bytes or 0 for datum in data)
    return {
        "name": ref.name,
        "run": ref.index,
        "task": description.info.task,
        "step": description.info.global_step,
        "timestamp": ref.timestamp,
        "status": description.status,
        "error": description.error,
        "records": records,
        "bytes": nbytes,
        "counts": counts,
    }


def describe_run(run: DebugDumpDir) -> dict[str, Any]:
    """Everything about one run except its tensors."""
    metadata = run.source.core_metadata
    return {
        "name": run.dump_root.name,
        "task": run.source.task,
        "status": getattr(run.source, "status", None),
        "error": run.error,
        "metadata": metadata[0]._asdict() if metadata else None,
        "fetches": run.source.fetches,
        "feed_keys": run.source.feed_keys,
        "devices": run.devices(),
        "records": run.size,
        "counts": run.counts,
        "sources": run.source.source_files(),
        "notices": run.notices,
    }


def list_tensors(
    run: DebugDumpDir, *, part: str, debug_op: str | None, bad: bool, offset: int, limit: int
) -> dict[str, Any]:
    """The records of a run in the order of time."""
    rows = list_records(run, lambda datum: part in datum.tensor_name and debug_op in (None, datum.debug_op))
    if bad:
        rows = [row for row in rows if row.is_bad()]
    return {
        "tensors": [_describe_record(row) for row in rows[offset : offset + limit]],
        "total": len(rows),
        "notices": run.notices,
    }


def _describe_record(row: RecordRow) -> dict[str, Any]:
    datum = row.datum
    facts: dict[str, Any] = {
        "tensor": datum.tensor_name,
        "debug_op": datum.debug_op,
        "device": datum.device_name,
        "timestamp": datum.timestamp,
        "dtype": datum.stored.dtype,
        "shape": datum.stored.shape,
        "bytes": datum.dump_size_bytes,
    }
    if row.pill is not None:
        facts["pill"] = {**pill_numbers(row.pill), "shape": row.pill.shape}
    return facts


def value_of(
    run: DebugDumpDir, text: str, debug_op: str | None, execution: int
) -> tuple[dict[str, Any], Any]:
    """Facts and value of one record, cut to the slices behind its name."""
    try:
        found = find_value(run, text, debug_op, execution)
        value = found.value()
    except NoSuchTensor as error:
        hint = nearest(error.tensor[:200], error.names)
        raise HTTPException(404, f"{error}{hint}") from None
    except NotThereError as error:
        raise HTTPException(404, str(error)) from None
    except DamagedValueError as error:
        raise HTTPException(409, str(error)) from None
    return {**_describe_record(RecordRow(run, found.datum)), "executions": found.executions}, value


def value_as_json(value: Any) -> dict[str, Any]:
    """A value that JSON can hold, or why it cannot."""
    if not hasattr(value, "dtype"):
        return {"value": None, "note": str(value)[:1000]}
    array = np.asarray(value)
    if array.size > ELEMENTS_AT_ONCE:
        raise HTTPException(
            413,
            f"{array.size} elements are too many for JSON: add slices, such as ?tensor=name[0, :10], or "
            "&format=npy.",
        )
    return {"value": array.tolist(), "value_shape": list(array.shape)}


def graph(run: DebugDumpDir, device: str | None) -> dict[str, Any]:
    """The nodes of one device, or of all."""
    known = run.devices() if device is None else [device]
    nodes = []
    for each in known:
        message = run.source.graph(each)
        if message is None:
            continue
        nodes += [
            {
                "name": node.name,
                "op": node.op,
                "device": each,
                "inputs": list(node.input),
                "source": [line.decode("utf-8", "replace") for line in node.attr["_source"].list.s]
                if "_source" in node.attr
                else [],
            }
            for node in message.node
        ]
    return {"nodes": nodes, "notices": run.notices}


def source(run: DebugDumpDir, path: str | None) -> dict[str, Any]:
    """The names of the stored source files, or the text of one."""
    if path is None:
        return {"paths": run.source.source_files()}
    try:
        return {"path": path, "text": run.source.source_text(path)}
    except KeyError:
        raise HTTPException(404, f"The run has no source file {path[:200]!r}.") from None


def tensor_names(job: AnyJob, debug_op: str | None) -> dict[str, Any]:
    """Names of all tensors that any run of a job recorded."""
    session = session_of(job)
    return {"tensors": session.tensors(debug_op), "notices": session.notices}


def health(
    job: AnyJob, tensor: str, limit: int | None, task: int | None, points: int | None
) -> dict[str, Any]:
    """The pills of one tensor in the last runs, column by column; of many runs at most so many points."""
    session = session_of(job)
    history = history_of(session, tensor, task=task, last=limit, reads_values=points is not None)
    if not len(history):
        names = session.tensors(PILL_OP)
        raise HTTPException(404, f"No health of {tensor[:200]!r} was recorded.{nearest(tensor[:200], names)}")
    total = len(history)
    if points is not None:
        history = joined(history, points)
    columns = {name: history[name].tolist() for name in history.dtype.names or ()}
    return {"tensor": tensor, "columns": columns, "total": total, "notices": session.notices}


def ranks(job: AnyJob, part: str, last: int | None) -> dict[str, Any]:
    """Which rank differs first."""
    session = session_of(job)
    found = compare_ranks(rank_readings(session, part=part, last=last))
    return {**found.as_dict(), "notices": session.notices}


def describe_hit(hit: Hit) -> dict[str, Any]:
    """A client that waits at a breakpoint."""
    record = hit.record
    kind = numpy_dtype(record.dtype)
    peek: list[Any] = []
    health = None
    if kind is not None and record.data is not None:
        value = np.frombuffer(record.data, kind)
        peek, health = value[:_PEEK_ELEMENTS].tolist(), Health.of_value(value)
    return {
        "id": hit.id,
        "run": hit.run,
        "task": hit.task,
        "watch_key": record.watch_key,
        "device": record.device,
        "dtype": record.dtype,
        "shape": record.shape,
        "since": hit.since,
        "first_elements": peek,
        "health": "" if health is None else str(health),
    }
