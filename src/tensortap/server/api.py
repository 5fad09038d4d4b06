"""The routes of the HTTP interface: one method each, which says what is asked for and hands on the answer."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from tensortap.analyze.values import storable
from tensortap.server import views
from tensortap.server.asking import body, job_of, json_answer, number, run_of
from tensortap.server.gates import CLOSED, STATE_NAMES, WatchKey, replacement
from tensortap.server.statistics import prometheus_text

if TYPE_CHECKING:
    from tensortap.server.debug_server import DebugServer
    from tensortap.server.recorded import Viewer

__all__ = ["Endpoint", "routes"]

Endpoint = Callable[[Request], Any]


def routes(server: DebugServer | Viewer) -> list[tuple[str, str, Endpoint]]:
    """Method, path and endpoint of every route."""
    return _Api(server).routes()


class _Api:
    """One method per route. Those that read files are plain functions, which Starlette runs in threads."""

    def __init__(self, server: DebugServer | Viewer) -> None:
        self._server = server

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
        return json_answer(self._server.describe())

    # --- what was received -------------------------------------------------------------------------

    def jobs(self, request: Request) -> Response:
        return json_answer({"jobs": [views.describe_job(job) for job in self._server.jobs() if job.is_known]})

    def job(self, request: Request) -> Response:
        return json_answer(views.describe_job(job_of(self._server, request)))

    def runs(self, request: Request) -> Response:
        return json_answer(
            views.list_runs(
                job_of(self._server, request),
                task=number(request, "task"),
                limit=number(request, "limit", 100, 10_000, least=1),
            )
        )

    def run(self, request: Request) -> Response:
        return json_answer(views.describe_run(run_of(self._server, request)))

    def tensors(self, request: Request) -> Response:
        return json_answer(
            views.list_tensors(
                run_of(self._server, request),
                part=request.query_params.get("name", ""),
                debug_op=request.query_params.get("debug_op"),
                bad=request.query_params.get("bad", "") not in ("", "0", "false"),
                offset=number(request, "offset", 0) or 0,
                limit=number(request, "limit", 1000, 100_000, least=1) or 1000,
            )
        )

    def value(self, request: Request) -> Response:
        text = request.query_params.get("tensor")
        if text is None:
            raise HTTPException(400, "Say which tensor: ?tensor=node:slot or ?tensor=node:slot[0, :3].")
        facts, value = views.value_of(
            run_of(self._server, request),
            text,
            request.query_params.get("debug_op"),
            number(request, "execution", -1, least=-(2**31)) or 0,
        )
        if request.query_params.get("format") == "npy":
            return _npy(value)
        return json_answer({**facts, **views.value_as_json(value)})

    def graph(self, request: Request) -> Response:
        return json_answer(views.graph(run_of(self._server, request), request.query_params.get("device")))

    def source(self, request: Request) -> Response:
        return json_answer(views.source(run_of(self._server, request), request.query_params.get("path")))

    def tensor_names(self, request: Request) -> Response:
        return json_answer(
            views.tensor_names(job_of(self._server, request), request.query_params.get("debug_op"))
        )

    def health(self, request: Request) -> Response:
        tensor = request.query_params.get("tensor")
        if tensor is None:
            raise HTTPException(400, "Say which tensor: ?tensor=node:slot.")
        limit = number(request, "limit", 10_000, 1_000_000, least=1)
        return json_answer(
            views.health(
                job_of(self._server, request),
                tensor,
                limit,
                number(request, "task"),
                number(request, "points", None, 100_000, least=1),
            )
        )

    def ranks(self, request: Request) -> Response:
        part = request.query_params.get("name", "")
        return json_answer(
            views.ranks(job_of(self._server, request), part, number(request, "last", 100, 100_000, least=1))
        )

    # --- alerts ------------------------------------------------------------------------------------

    async def alerts(self, request: Request) -> Response:
        job = job_of(self._server, request)
        part = request.query_params.get("name", "")
        found = [asdict(alert) for alert in job.alerts.report() if part in alert.tensor]
        return json_answer({"alerts": found, "left_out": job.alerts.left_out})

    def clear_alerts(self, request: Request) -> Response:
        job = job_of(self._server, request)
        job.alerts.clear()
        job.save()
        return json_answer({"alerts": []})

    # --- gates and breakpoints ---------------------------------------------------------------------

    async def gates(self, request: Request) -> Response:
        return self._gates(job_of(self._server, request))

    @staticmethod
    def _gates(job: views.AnyJob) -> Response:
        states = job.gates.states()
        return json_answer(
            {
                "gates": [{"watch_key": str(key), "state": state} for key, state in states.items()],
                "gated": [str(key) for key in job.gated()],
            }
        )

    async def set_gates(self, request: Request) -> Response:
        asked = await body(request)
        keys = asked.get("watch_keys")
        state = asked.get("state")
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or not keys:
            raise HTTPException(400, "watch_keys must be a list of keys such as 'fc/addmm:0:DebugIdentity'.")
        if not isinstance(state, str) or state not in STATE_NAMES.values():
            raise HTTPException(400, f"state must be one of {', '.join(sorted(STATE_NAMES.values()))}.")
        job = job_of(self._server, request, make=True)
        parsed = [WatchKey.parse(key) for key in keys]
        await asyncio.to_thread(job.set_gates, parsed, state)
        return self._gates(job)

    def close_gates(self, request: Request) -> Response:
        job = job_of(self._server, request)
        asked = request.query_params.getlist("watch_key")
        keys = [WatchKey.parse(key) for key in asked] if asked else list(job.gates.states())
        job.set_gates(keys, CLOSED)
        return self._gates(job)

    async def breakpoints(self, request: Request) -> Response:
        hits = job_of(self._server, request).gates.hits()
        return json_answer({"waiting": [views.describe_hit(hit) for hit in hits]})

    async def release(self, request: Request) -> Response:
        job, wanted = job_of(self._server, request), request.path_params["id"]
        asked = await body(request)
        hit = next((hit for hit in job.gates.hits() if hit.id == wanted), None)
        if hit is None:
            raise HTTPException(404, f"Nobody waits at breakpoint {wanted}; it was released or gave up.")
        value = None if asked.get("value") is None else replacement(hit.record, asked["value"])
        if not job.gates.release(wanted, value):
            raise HTTPException(404, f"Nobody waits at breakpoint {wanted} any more.")
        return json_answer({"released": wanted, "replaced": value is not None})


def _npy(value: Any) -> Response:
    array = storable(value)
    if array is None:
        raise HTTPException(400, "This tensor has no value that a NumPy file can hold.")
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return Response(file.getvalue(), media_type="application/octet-stream")
