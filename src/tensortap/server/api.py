"""The routes of the HTTP interface: one method each, which says what is asked for and hands on the answer."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from tensortap.analyze.values import storable
from tensortap.report.plain import plain
from tensortap.server import views
from tensortap.server.answers import Answers
from tensortap.server.gates import CLOSED, STATE_NAMES, WatchKey, replacement
from tensortap.server.job import Job
from tensortap.server.statistics import prometheus_text

if TYPE_CHECKING:
    from tensortap.server.debug_server import DebugServer

__all__ = ["MAX_BODY_BYTES", "Endpoint", "routes"]

MAX_BODY_BYTES = 64 << 20
_JOBS_SHOWN = 10

Endpoint = Callable[[Request], Any]


def routes(server: DebugServer) -> list[tuple[str, str, Endpoint]]:
    """Method, path and endpoint of every route."""
    return _Api(server).routes()


class _Api:
    """One method per route. Those that read files are plain functions, which Starlette runs in threads."""

    def __init__(self, server: DebugServer) -> None:
        self._server = server
        self._answers = Answers()

    def routes(self) -> list[tuple[str, str, Endpoint]]:
        """Method, path and endpoint of every route."""
        job, run = "/api/jobs/{job}", "/api/jobs/{job}/runs/{run}"
        return [
            ("GET", "/healthz", self.healthz),
            ("GET", "/metrics", self.metrics),
            ("GET", "/api/server", self.server),
            ("GET", "/api/jobs", self.jobs),
            ("GET", job, self.job),
            ("GET", f"{job}/runs", self.runs),
            ("GET", run, self.run),
            ("GET", f"{run}/tensors", self.tensors),
            ("GET", f"{run}/value", self.value),
            ("GET", f"{run}/graph", self.graph),
            ("GET", f"{run}/source", self.source),
            ("GET", f"{job}/tensors", self.tensor_names),
            ("GET", f"{job}/health", self.health),
            ("GET", f"{job}/answer", self.answer),
            ("GET", f"{job}/ranks", self.ranks),
            ("GET", f"{job}/alerts", self.alerts),
            ("DELETE", f"{job}/alerts", self.clear_alerts),
            ("GET", f"{job}/gates", self.gates),
            ("PUT", f"{job}/gates", self.set_gates),
            ("DELETE", f"{job}/gates", self.close_gates),
            ("GET", f"{job}/breakpoints", self.breakpoints),
            ("POST", f"{job}/breakpoints/{{id:int}}/release", self.release),
        ]

    # --- the server --------------------------------------------------------------------------------

    async def healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        text = prometheus_text(self._server.statistics.counts(), self._server.gauges())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def server(self, request: Request) -> Response:
        server = self._server
        return _json(
            {
                "version": version("tensortap"),
                "address": server.address,
                "root": str(server.root.absolute()),
                "started": server.statistics.started,
                "counts": server.statistics.counts(),
                "now": server.gauges(),
                "limits": asdict(server.limits),
                "breakpoint_timeout": server.breakpoint_timeout,
            }
        )

    # --- what was received -------------------------------------------------------------------------

    def jobs(self, request: Request) -> Response:
        return _json({"jobs": [views.describe_job(job) for job in self._server.jobs() if job.is_known]})

    def job(self, request: Request) -> Response:
        return _json(views.describe_job(self._job(request)))

    def runs(self, request: Request) -> Response:
        return _json(
            views.list_runs(
                self._job(request),
                task=_number(request, "task"),
                limit=_number(request, "limit", 100, 10_000, least=1),
            )
        )

    def run(self, request: Request) -> Response:
        return _json(views.describe_run(self._run(request)))

    def tensors(self, request: Request) -> Response:
        return _json(
            views.list_tensors(
                self._run(request),
                part=request.query_params.get("name", ""),
                debug_op=request.query_params.get("debug_op"),
                bad=request.query_params.get("bad", "") not in ("", "0", "false"),
                offset=_number(request, "offset", 0) or 0,
                limit=_number(request, "limit", 1000, 100_000, least=1) or 1000,
            )
        )

    def value(self, request: Request) -> Response:
        text = request.query_params.get("tensor")
        if text is None:
            raise HTTPException(400, "Say which tensor: ?tensor=node:slot or ?tensor=node:slot[0, :3].")
        facts, value = views.value_of(
            self._run(request),
            text,
            request.query_params.get("debug_op"),
            _number(request, "execution", -1, least=-(2**31)) or 0,
        )
        if request.query_params.get("format") == "npy":
            return _npy(value)
        return _json({**facts, **views.value_as_json(value)})

    def graph(self, request: Request) -> Response:
        return _json(views.graph(self._run(request), request.query_params.get("device")))

    def source(self, request: Request) -> Response:
        return _json(views.source(self._run(request), request.query_params.get("path")))

    def tensor_names(self, request: Request) -> Response:
        return _json(views.tensor_names(self._job(request), request.query_params.get("debug_op")))

    def health(self, request: Request) -> Response:
        tensor = request.query_params.get("tensor")
        if tensor is None:
            raise HTTPException(400, "Say which tensor: ?tensor=node:slot.")
        limit = _number(request, "limit", 10_000, 1_000_000, least=1)
        return _json(views.health(self._job(request), tensor, limit))

    def answer(self, request: Request) -> Response:
        return _json(self._answers.of(self._job(request)))

    def ranks(self, request: Request) -> Response:
        part = request.query_params.get("name", "")
        return _json(views.ranks(self._job(request), part, _number(request, "last", 100, 100_000, least=1)))

    # --- alerts ------------------------------------------------------------------------------------

    async def alerts(self, request: Request) -> Response:
        job = self._job(request)
        part = request.query_params.get("name", "")
        found = [asdict(alert) for alert in job.alerts.report() if part in alert.tensor]
        return _json({"alerts": found, "left_out": job.alerts.left_out})

    def clear_alerts(self, request: Request) -> Response:
        job = self._job(request)
        job.alerts.clear()
        job.save()
        return _json({"alerts": []})

    # --- gates and breakpoints ---------------------------------------------------------------------

    async def gates(self, request: Request) -> Response:
        return self._gates(self._job(request))

    @staticmethod
    def _gates(job: Job) -> Response:
        states = job.gates.states()
        return _json(
            {
                "gates": [{"watch_key": str(key), "state": state} for key, state in states.items()],
                "gated": [str(key) for key in job.gated()],
            }
        )

    async def set_gates(self, request: Request) -> Response:
        body = await _body(request)
        keys = body.get("watch_keys")
        state = body.get("state")
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or not keys:
            raise HTTPException(400, "watch_keys must be a list of keys such as 'fc/addmm:0:DebugIdentity'.")
        if not isinstance(state, str) or state not in STATE_NAMES.values():
            raise HTTPException(400, f"state must be one of {', '.join(sorted(STATE_NAMES.values()))}.")
        job = self._job(request, make=True)
        parsed = [WatchKey.parse(key) for key in keys]
        await asyncio.to_thread(job.set_gates, parsed, state)
        return self._gates(job)

    def close_gates(self, request: Request) -> Response:
        job = self._job(request)
        asked = request.query_params.getlist("watch_key")
        keys = [WatchKey.parse(key) for key in asked] if asked else list(job.gates.states())
        job.set_gates(keys, CLOSED)
        return self._gates(job)

    async def breakpoints(self, request: Request) -> Response:
        hits = self._job(request).gates.hits()
        return _json({"waiting": [views.describe_hit(hit) for hit in hits]})

    async def release(self, request: Request) -> Response:
        job, number = self._job(request), request.path_params["id"]
        body = await _body(request)
        hit = next((hit for hit in job.gates.hits() if hit.id == number), None)
        if hit is None:
            raise HTTPException(404, f"Nobody waits at breakpoint {number}; it was released or gave up.")
        value = None if body.get("value") is None else replacement(hit.record, body["value"])
        if not job.gates.release(number, value):
            raise HTTPException(404, f"Nobody waits at breakpoint {number} any more.")
        return _json({"released": number, "replaced": value is not None})

    # --- finding -----------------------------------------------------------------------------------

    def _job(self, request: Request, make: bool = False) -> Job:
        """The job of the path, by its id; by its name if none has that id."""
        name = request.path_params["job"]
        jobs = self._server.jobs()
        known = {job.name: job for job in jobs} | {job.directory.name: job for job in jobs}
        if name in known:
            return known[name]
        if make:
            job = self._server.job(name)
            job.make()
            return job
        ids = [job.directory.name for job in jobs if job.is_known]
        some = ", ".join(ids[-_JOBS_SHOWN:]) or "none yet"
        more = f" and {len(ids) - _JOBS_SHOWN} older ones" if len(ids) > _JOBS_SHOWN else ""
        raise HTTPException(404, f"There is no job {name[:80]!r}; there are {some}{more}.")

    def _run(self, request: Request) -> Any:
        return views.open_run(self._job(request), request.path_params["run"])


def _number(
    request: Request, name: str, default: int | None = None, most: int = 2**31, least: int = 0
) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        number = int(text[:20])
    except ValueError:
        raise HTTPException(400, f"{name} must be a whole number, got {text[:40]!r}.") from None
    if number < least:
        raise HTTPException(400, f"{name} must be at least {least}, got {number}.")
    return min(number, most)


async def _body(request: Request) -> dict[str, Any]:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY_BYTES:
            raise HTTPException(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
    if not content:
        return {}
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise HTTPException(400, "The body is no JSON.") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "The body must be a JSON object.")
    return body


def _json(facts: Mapping[str, Any]) -> Response:
    return JSONResponse(plain(facts))


def _npy(value: Any) -> Response:
    array = storable(value)
    if array is None:
        raise HTTPException(400, "This tensor has no value that a NumPy file can hold.")
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return Response(file.getvalue(), media_type="application/octet-stream")
