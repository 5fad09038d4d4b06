"""What the routes share: what a request names, and the form of an answer."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tensortap.report.plain import plain
from tensortap.server import views

if TYPE_CHECKING:
    from tensortap.server.debug_server import DebugServer
    from tensortap.server.recorded import Viewer

__all__ = [
    "MAX_BODY_BYTES",
    "body",
    "find_job",
    "job_of",
    "json_answer",
    "number",
    "packed_answer",
    "run_of",
    "text",
]

MAX_BODY_BYTES = 64 << 20
_JOBS_SHOWN = 10
_PACKED_FROM = 4096


def number(
    request: Request, name: str, default: int | None = None, most: int = 2**31, least: int = 0
) -> int | None:
    """A parameter that is a whole number; larger ones are cut to `most`."""
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


async def body(request: Request) -> dict[str, Any]:
    """The JSON object that a request carries; an empty one if it carries nothing."""
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


def json_answer(facts: Mapping[str, Any]) -> Response:
    """Facts as JSON."""
    try:
        return JSONResponse(facts)
    except (TypeError, ValueError):  # something in it has no place in JSON, such as NaN
        return JSONResponse(plain(facts))


def text(request: Request, name: str, example: str) -> str:
    """A parameter that must be there."""
    found = request.query_params.get(name)
    if found is None:
        raise HTTPException(400, f"Say which {name}: ?{name}={example}.")
    return found


def packed_answer(request: Request, facts: Mapping[str, Any]) -> Response:
    """An answer that is compressed for whoever takes it so."""
    answer = json_answer(facts)
    if len(answer.body) < _PACKED_FROM or "gzip" not in request.headers.get("accept-encoding", ""):
        return answer
    packer = zlib.compressobj(1, wbits=31)
    content = packer.compress(bytes(answer.body)) + packer.flush()
    return Response(content, media_type="application/json", headers={"content-encoding": "gzip"})


def job_of(server: DebugServer | Viewer, request: Request, make: bool = False) -> views.AnyJob:
    """The job of the path, by its id; by its name if none has that id."""
    name = request.path_params["job"]
    return find_job(server, name, make)


def find_job(server: DebugServer | Viewer, name: str, make: bool = False) -> views.AnyJob:
    """A job by its id; by its name if none has that id."""
    jobs = server.jobs()
    known: dict[str, views.AnyJob] = {job.name: job for job in jobs}
    known |= {job.id: job for job in jobs}
    if name in known:
        return known[name]
    if make:
        job = server.job(name)
        job.make()
        return job
    ids = [job.id for job in jobs if job.is_known]
    some = ", ".join(ids[-_JOBS_SHOWN:]) or "none yet"
    more = f" and {len(ids) - _JOBS_SHOWN} older ones" if len(ids) > _JOBS_SHOWN else ""
    raise HTTPException(404, f"There is no job {name[:80]!r}; there are {some}{more}.")


def run_of(server: DebugServer | Viewer, request: Request) -> Any:
    """The run of the path, opened."""
    return views.open_run(job_of(server, request), request.path_params["run"], number(request, "task"))
