"""What a page that stands alone shows: the answers that its views would ask a server for, by address."""

from __future__ import annotations

import base64
import contextlib
import shlex
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from tensortap.analyze.checks import check_session
from tensortap.analyze.findings import Finding
from tensortap.analyze.history import history_of, joined
from tensortap.analyze.mosaic import Mosaic
from tensortap.analyze.ranks import compare_ranks
from tensortap.analyze.session import search_session
from tensortap.analyze.values import find_value
from tensortap.errors import TensortapError
from tensortap.reader import RunRef, SessionDir
from tensortap.reader.mosaic import SessionMosaic
from tensortap.reader.rank_readings import rank_readings
from tensortap.server import page_views
from tensortap.server.looks import Look
from tensortap.server.recorded import RecordedJob

__all__ = ["contents_of"]

GRID_CELLS = 1_500_000
"""Cells of the health grid; beyond it, columns are joined."""
PICTURE_CELLS = 96
VALUE_ELEMENTS = 2_000
POINTS = 300
_NODES = 40
_TENSORS = 40
_DEPTHS = (1, 2, 3)
_SOURCE_BYTES = 200_000
_UNQUOTED = "!'()*~-_."
"""What encodeURIComponent leaves as it is."""


def contents_of(directory: Path) -> dict[str, Any]:
    """Everything about the first bad value, values included; of all else the health."""
    job = RecordedJob(directory)
    look = Look(job)
    session = job.session()
    look.mosaic, look.runs = SessionMosaic(session), len(session)
    while not look.mosaic.is_complete:
        look.mosaic.advance(1.0)
    report = search_session(session)
    look.take(
        page_views.describe_report(report, session), page_views.describe_findings(check_session(session))
    )
    told = _Told(job.id)
    told.add("/api/server", {"version": version("tensortap"), "is_live": False, "started": 0, "now": {}})
    told.add("/api/jobs", {"jobs": [_describe(job, session)]})
    told.add(told.job("answer"), page_views.answer_of(look))
    told.add(told.job("findings"), page_views.findings_of(look, None))
    told.add(told.job("ranks"), {**_ranks(session), "notices": []})
    _add_traces(told, session)
    first = report.first_bad
    if first is not None:
        _add_finding(told, look, session, first)
    facts = page_views.grid(look, None)
    mosaic = Mosaic() if facts["task"] is None else look.mosaic.by_rank[facts["task"]]
    whole = _whole(mosaic)
    told.add(told.job("grid"), _narrowed(facts, mosaic, whole["columns"]))
    return {
        "answers": told.answers,
        "mosaic": whole,
        "command": f"`tensortap view {shlex.quote(directory.name)}`",
    }


class _Told:
    """Answers by address, as the page asks for them."""

    def __init__(self, job: str) -> None:
        self.answers: dict[str, Any] = {}
        self._job = job

    def job(self, path: str) -> str:
        return f"/api/jobs/{quote(self._job, safe=_UNQUOTED)}/{path}"

    def run(self, run: int, path: str) -> str:
        return self.job(f"runs/{run}/{path}")

    def add(self, address: str, answer: Any, **query: Any) -> None:
        given = "&".join(f"{key}={quote(str(value), safe=_UNQUOTED)}" for key, value in query.items())
        self.answers[f"{address}?{given}" if given else address] = answer


def _describe(job: RecordedJob, session: SessionDir) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "is_live": False,
        "directory": job.name,
        "runs": len(session),
        "receiving": 0,
        "tasks": session.tasks(),
        "newest_run": session.runs[-1].name if session.runs else None,
        "gates": 0,
        "waiting_at_breakpoints": 0,
        "alerts": 0,
    }


def _ranks(session: SessionDir) -> dict[str, Any]:
    if len(session.tasks()) < 2:
        return compare_ranks([]).as_dict()
    return compare_ranks(rank_readings(session, last=100)).as_dict()


def _add_traces(told: _Told, session: SessionDir) -> None:
    listed = page_views.traces(session)["traces"][:3]
    told.add(told.job("traces"), {"traces": listed})
    for each, path in zip(listed, page_views.trace_paths(session), strict=False):
        with contextlib.suppress(TensortapError, OSError):
            told.add(told.job(f"traces/{each['id']}"), page_views.trace(path))


def _add_finding(told: _Told, look: Look, session: SessionDir, first: Finding) -> None:
    ref = next(run for run in session.runs if run.name == first.run_name)
    run = ref.open(validate=False)
    tensors = [first.tensor, *(each.tensor for each in first.inputs), *first.propagators]
    for tensor in list(dict.fromkeys(tensors))[:_TENSORS]:
        history = history_of(session, tensor, task=first.rank)
        if len(history):
            small = joined(history, POINTS)
            columns = {name: small[name].tolist() for name in small.dtype.names or ()}
            facts = {"tensor": tensor, "columns": columns, "total": len(history), "notices": []}
            told.add(told.job("health"), facts, tensor=tensor)
        with contextlib.suppress(TensortapError, OSError):
            shown = page_views.picture(run, tensor, -1, most=PICTURE_CELLS)
            told.add(told.run(first.run, "picture"), shown, tensor=tensor)
            value = np.asarray(find_value(run, tensor).value())
            if value.size <= VALUE_ELEMENTS:
                listed = {"tensor": tensor, "value": value.tolist(), "value_shape": list(value.shape)}
                told.add(told.run(first.run, "value"), listed, tensor=tensor)
    for name in _nodes_around(look, ref, first):
        for depth in _DEPTHS:
            found = page_views.node(look, ref, name, depth)
            told.add(told.run(first.run, "node"), found, name=name, depth=depth)
    files = page_views.lines(look, ref, None)
    told.add(told.run(first.run, "lines"), files)
    for file in files["files"][:8]:
        path = file["path"]
        with contextlib.suppress(KeyError, OSError, TensortapError):
            text = run.source.source_text(path)
            if len(text) <= _SOURCE_BYTES:
                told.add(told.run(first.run, "lines"), page_views.lines(look, ref, path), path=path)
                told.add(told.run(first.run, "source"), {"path": path, "text": text}, path=path)


def _nodes_around(look: Look, ref: RunRef, first: Finding) -> Iterator[str]:
    """The nodes one may walk to from the one that went bad."""
    try:
        found = page_views.node(look, ref, first.node.name, 2)
    except LookupError:  # no graph was stored
        return
    names = [first.node.name, *(each["name"] for each in found["nodes"]), *found["path"]]
    known = look.facts(ref).nodes
    yield from [name for name in dict.fromkeys(names) if name in known][:_NODES]


def _whole(mosaic: Mosaic) -> dict[str, Any]:
    """The grid as a whole, as wide as it may be."""
    rows = min(len(mosaic.tensors), page_views.MOST_TENSORS)
    width = max(1, min(mosaic.columns, GRID_CELLS // max(rows, 1)))
    tile = mosaic.tile([[(row, row + 1)] for row in range(rows)], 0, mosaic.columns, width)
    places = [edge * mosaic.stride for edge in tile.edges[:-1]]
    planes = {name: getattr(tile, name) for name in ("kinds", "sizes", "zeros")}
    return {
        "columns": len(places),
        "runs": [mosaic.runs[place] for place in places],
        "steps": [mosaic.steps[place] for place in places],
        **{name: base64.b64encode(plane.tobytes()).decode() for name, plane in planes.items()},
    }


def _narrowed(facts: dict[str, Any], mosaic: Mosaic, columns: int) -> dict[str, Any]:
    """What the page is told of a grid whose columns were joined."""
    scale = columns / max(mosaic.columns, 1)
    return {
        **facts,
        "tasks": [] if facts["task"] is None else [facts["task"]],
        "columns": columns,
        "first_bad": [None if each is None else int(each * scale) for each in facts["first_bad"]],
    }
