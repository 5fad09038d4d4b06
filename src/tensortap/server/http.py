"""The HTTP interface: JSON about jobs, runs, tensors and values; gates and breakpoints; metrics.

Everything is read from the session directories with the same reader that the commands use. Jobs and runs are
named by their directories, which are looked up in lists: no name from a request becomes a path. The routes
are described in `docs/server.md`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tensortap.errors import DamagedValueError, NotThereError
from tensortap.server.api import routes
from tensortap.server.asking import MAX_BODY_BYTES
from tensortap.server.network import free_socket, is_loopback
from tensortap.server.page_api import OPEN_PATHS, PageApi
from tensortap.wire.debug_service import WireError

if TYPE_CHECKING:
    from tensortap.server.debug_server import DebugServer
    from tensortap.server.recorded import Viewer

__all__ = ["HttpServer", "make_app"]

_START_SECS = 20.0


class HttpServer:
    """The HTTP interface in a thread of its own. Its port is bound as soon as it is made."""

    def __init__(
        self,
        server: DebugServer | Viewer,
        host: str,
        port: int,
        tls_cert: str | Path | None,
        tls_key: str | Path | None,
    ) -> None:
        self._socket = free_socket(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._pages = PageApi(server)
        config = uvicorn.Config(
            make_app(server, self._pages),
            log_config=None,
            # Whoever knocks with something else than HTTP is answered, and must not fill the log.
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            ssl_certfile=None if tls_cert is None else str(tls_cert),
            ssl_keyfile=None if tls_key is None else str(tls_key),
            timeout_graceful_shutdown=2,
        )
        self._uvicorn = uvicorn.Server(config)
        logging.getLogger("uvicorn.error").addFilter(_is_no_end)
        self._thread = threading.Thread(target=self._run, name="tensortap-http", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def look_ahead(self) -> None:
        """Begin to read what whoever opens the page sees first."""
        self._pages.look_ahead()

    def stop(self) -> None:
        """End the thread."""
        self._pages.is_stopping = True
        self._uvicorn.should_exit = True
        if self._thread.is_alive():
            self._thread.join(_START_SECS)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._uvicorn.serve(sockets=[self._socket]))


def _is_no_end(record: logging.LogRecord) -> bool:
    """False for what is said of requests that the end of the server cuts off: whoever ends it knows."""
    cut_off = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not cut_off and "graceful shutdown" not in str(record.msg)


def make_app(server: DebugServer | Viewer, pages: PageApi | None = None) -> Any:
    """The application, guarded."""
    every = [*routes(server), *(pages or PageApi(server)).routes()]
    app = Starlette(
        routes=[Route(path, endpoint, methods=[method]) for method, path, endpoint in every],
        exception_handlers={
            HTTPException: _explain,
            WireError: _explain_value,
            DamagedValueError: _explain_damage,
            ValueError: _explain_value,
            NotThereError: _explain_absence,
        },
    )
    return _Guard(app, server)


def _explain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def _explain_value(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


def _explain_absence(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 404)


def _explain_damage(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 409)


_OPEN_PATHS = OPEN_PATHS | {"/healthz"}

_Scope = Any


class _Guard:
    """Lets through only who may: the right token, and no page of another site in a browser on this machine.

    A browser follows a name that an attacker controls to 127.0.0.1, and then `Host` gives it away; a form or
    script on another page says so in `Origin`.
    """

    def __init__(self, app: Any, server: DebugServer | Viewer) -> None:
        self._app = app
        self._server = server

    async def __call__(
        self, scope: _Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] == "http":
            problem = self._problem(Request(scope))
            if problem is not None:
                await problem(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, request: Request) -> Response | None:
        named = request.headers.get("host", "")
        host = _host_of(named)
        if is_loopback(self._server.host) and not is_loopback(host):
            return JSONResponse({"error": f"This server is not called {host or named!r}."}, 403)
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != named:
            return JSONResponse({"error": f"Requests from {origin!r} are not accepted."}, 403)
        wanted = self._server.token
        if wanted is not None and request.url.path not in _OPEN_PATHS:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), wanted.encode()):
                return JSONResponse({"error": "The server wants a token: Authorization: Bearer …"}, 401)
        if int(request.headers.get("content-length") or 0) > MAX_BODY_BYTES:
            return JSONResponse({"error": f"The body is larger than {MAX_BODY_BYTES} bytes."}, 413)
        return None


def _host_of(named: str) -> str:
    """The host in `host:port`; empty if there is none, because everybody can write anything there.

    >>> _host_of("[::1]:6065"), _host_of("[")
    ('::1', '')
    """
    try:
        return urlsplit(f"//{named}").hostname or ""
    except ValueError:
        return ""
