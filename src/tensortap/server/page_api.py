"""The routes that the page needs beyond those for records and gates; and the page itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from tensortap import web
from tensortap.server import page_views, views
from tensortap.server.asking import body, find_job, job_of, json_answer, number, packed_answer, run_of, text
from tensortap.server.looks import Look, Looks

if TYPE_CHECKING:
    from tensortap.reader import RunRef
    from tensortap.server.api import Endpoint
    from tensortap.server.debug_server import DebugServer
    from tensortap.server.recorded import Viewer

__all__ = ["OPEN_PATHS", "PageApi"]

OPEN_PATHS = frozenset(["/", "/page.js", "/page.css", "/icon.svg"])
"""What a browser may have without a token: the page, which holds nothing of any job."""

_LOOK_SECS = 0.25
_FIRST_SECS = 1.0
"""How long the first picture of the grid is waited for, before an empty one is sent."""
_BEAT_SECS = 10.0
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageApi:
    """One method per route. Those that read files are plain functions, which Starlette runs in threads.

    Attributes:
        is_stopping: set when the server ends; open streams of events then end too.
    """

    def __init__(self, server: DebugServer | Viewer) -> None:
        self._server = server
        self._looks = Looks()
        self.is_stopping = False

    def look_ahead(self) -> None:
        """Begin to read what whoever opens the page sees first."""
        for job in self._server.jobs()[:1]:
            if job.directory.is_dir():
                self._looks.at(job)

    def routes(self) -> list[tuple[str, str, Endpoint]]:
        """Method, path and endpoint of every route."""
        job, run = "/api/jobs/{job}", "/api/jobs/{job}/runs/{run}"
        return [
            *(("GET", path, self.page) for path in sorted(OPEN_PATHS)),
            ("GET", "/api/events", self.events),
            ("GET", f"{job}/answer", self.answer),
            ("GET", f"{job}/findings", self.findings),
            ("GET", f"{job}/grid", self.grid),
            ("POST", f"{job}/grid", self.tile),
            ("GET", f"{job}/traces", self.traces),
            ("GET", f"{job}/traces/{{id:int}}", self.trace),
            ("GET", f"{job}/traces/{{id:int}}/file", self.trace_file),
            ("GET", f"{run}/picture", self.picture),
            ("GET", f"{run}/node", self.node),
            ("GET", f"{run}/lines", self.lines),
        ]

    async def page(self, request: Request) -> Response:
        """The page, which asks for everything else."""
        name = request.url.path.lstrip("/") or "index.html"
        content, kind, tag = web.asset(name)
        headers = {"content-security-policy": _POLICY, "cache-control": "no-cache", "etag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            content, headers["content-encoding"] = web.packed(name), "gzip"
        return Response(content, media_type=kind, headers=headers)

    # --- live --------------------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """What has changed, whenever something has: server-sent events about one job, and how many there are.

        Without a name it is the first one; one that is not there yet may come.
        """
        return StreamingResponse(
            self._changes(request.query_params.get("job")),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    async def _changes(self, name: str | None) -> AsyncIterator[bytes]:
        told: Any = None
        silent = 0.0
        look: Look | None = None
        while not self.is_stopping:
            jobs = [job for job in self._server.jobs() if job.is_known]
            state: dict[str, Any] = {"jobs": len(jobs)}
            if look is None:
                followed = next((job for job in jobs if name in (None, job.id, job.name)), None)
                look = None if followed is None else self._looks.at(followed)
            if look is not None:
                state |= look.ask().state()
            if state != told:
                told, silent = state, 0.0
                yield f"data: {json.dumps(state)}\n\n".encode()
            elif silent >= _BEAT_SECS:
                silent = 0.0
                yield b": still here\n\n"
            await asyncio.sleep(_LOOK_SECS)
            silent += _LOOK_SECS

    # --- what was recorded -------------------------------------------------------------------------

    def answer(self, request: Request) -> Response:
        """The first bad value, or that there is none."""
        return packed_answer(request, page_views.answer_of(self._look(request)))

    def findings(self, request: Request) -> Response:
        """What is silently wrong."""
        return packed_answer(request, page_views.findings_of(self._look(request), number(request, "task")))

    def grid(self, request: Request) -> Response:
        """Rows and columns of the health grid."""
        look = self._look(request)
        look.is_begun.wait(_FIRST_SECS)
        return packed_answer(request, page_views.grid(look, number(request, "task")))

    async def tile(self, request: Request) -> Response:
        """Part of the grid, for the pixels there are."""
        asked = await body(request)
        look = self._look(request)
        return packed_answer(request, await asyncio.to_thread(page_views.tile, look, asked))

    def picture(self, request: Request) -> Response:
        """A value as a picture."""
        asked = request.query_params
        other = None
        if "other_run" in asked:
            job = find_job(self._server, asked.get("other_job", request.path_params["job"]))
            other = views.open_run(job, asked["other_run"], number(request, "other_task"))
        return packed_answer(
            request,
            page_views.picture(
                run_of(self._server, request),
                text(request, "tensor", "node:slot"),
                number(request, "execution", -1, least=-(2**31)) or 0,
                other,
                asked.get("other_tensor"),
            ),
        )

    def node(self, request: Request) -> Response:
        """The graph around a node."""
        depth = number(request, "depth", 2, 12) or 0
        run, name = self._ref(request), text(request, "name", "fc/addmm")
        return packed_answer(request, page_views.node(self._look(request), run, name, depth))

    def lines(self, request: Request) -> Response:
        """Marks beside source lines."""
        found = page_views.lines(self._look(request), self._ref(request), request.query_params.get("path"))
        return packed_answer(request, found)

    # --- timelines ---------------------------------------------------------------------------------

    def traces(self, request: Request) -> Response:
        """The timelines there are."""
        return json_answer(page_views.traces(views.session_of(job_of(self._server, request))))

    def trace(self, request: Request) -> Response:
        """Where time and memory of one went."""
        return packed_answer(request, page_views.trace(self._trace_path(request)))

    def trace_file(self, request: Request) -> Response:
        """One as a file."""
        path = self._trace_path(request)
        return FileResponse(path, media_type="application/octet-stream", filename=path.name)

    def _trace_path(self, request: Request) -> Any:
        paths = page_views.trace_paths(views.session_of(job_of(self._server, request)))
        wanted = request.path_params["id"]
        if wanted >= len(paths):
            raise HTTPException(404, f"There is no timeline {wanted}; there are {len(paths)}.")
        return paths[wanted]

    def _look(self, request: Request) -> Look:
        job = job_of(self._server, request)
        if not job.directory.is_dir():
            raise HTTPException(404, f"Nothing was received of job {job.name!r} yet.")
        return self._looks.at(job)

    def _ref(self, request: Request) -> RunRef:
        job = job_of(self._server, request)
        return views.find_run(job, request.path_params["run"], number(request, "task"))
