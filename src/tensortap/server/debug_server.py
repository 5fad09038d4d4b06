"""`DebugServer`: receives what running jobs stream, keeps it as session directories, and answers over HTTP."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tensortap.errors import UsageError
from tensortap.extras import require
from tensortap.server.gates import CLOSED, WatchKey
from tensortap.server.graph_index import GraphIndex
from tensortap.server.handler import StreamHandler
from tensortap.server.job import DEFAULT_JOB, Job
from tensortap.server.limits import Limits, checked_name
from tensortap.server.programs import Programs
from tensortap.server.retention import DiskKeeper
from tensortap.server.statistics import Statistics, resident_bytes
from tensortap.server.stream import Stream
from tensortap.store.server_root import job_directory, list_jobs
from tensortap.wire.debug_service import WireError

if TYPE_CHECKING:
    import grpc

    from tensortap.reader import SessionDir
    from tensortap.server.http import HttpServer

__all__ = ["DebugServer"]

log = logging.getLogger(__name__)

_STOP_SECS = 5.0
_SAID = 10_000
"""Different warnings; whoever causes more of them wants to fill the log."""


class DebugServer:
    """A debug server in this process: tfdbg's gRPC service, and HTTP beside it.

    Every job gets a session directory under the root. It can be read while it grows, and a server that is
    started again on the same root goes on with it.

    Args:
        root: where session directories are made.
        host: address to listen on. Any other than that of this machine itself needs a token.
        port: of the gRPC service; 0 takes a free one.
        http_port: of the HTTP interface; 0 takes a free one, None does without.
        token: what clients and browsers must present; None asks for nothing.
        tls_cert: file with the certificate chain, in PEM form. With it both ports speak TLS only.
        tls_key: file with its private key.
        max_bytes: of all runs on disk; the oldest finished ones are deleted.
        max_age: in seconds; older finished runs are deleted.
        breakpoint_timeout: seconds that a client waits at a breakpoint for somebody to release it. 0 lets it go on
            at once.
        handler: called with the server for every stream; what it returns sees the events of the stream.
        limits: what clients may send.

    Raises:
        MissingExtraError: gRPC, or what the HTTP interface needs, is not installed.
        ValueError: an address that others can reach without a token, or a half of the TLS files.
        OSError: a port that is taken, a file that cannot be read.

    >>> import tempfile
    >>> with DebugServer(tempfile.mkdtemp(), http_port=None) as server:
    ...     server.address.startswith("127.0.0.1:")
    True
    """

    def __init__(
        self,
        root: str | Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        http_port: int | None = 0,
        token: str | None = None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        max_bytes: int | None = None,
        max_age: float | None = None,
        breakpoint_timeout: float = 300.0,
        handler: Callable[[DebugServer], StreamHandler] = StreamHandler,
        limits: Limits | None = None,
    ) -> None:
        _check_trust(host, token, tls_cert, tls_key)
        require("stream" if http_port is None else "serve", "The debug server")
        self.root = Path(root).expanduser()
        self.host = host
        self.token = token
        self.tls = tls_cert is not None
        self.limits = limits or Limits()
        self.breakpoint_timeout = breakpoint_timeout
        self.statistics = Statistics()
        self.programs = Programs(self.limits)
        self.graphs = GraphIndex(self.programs)
        self.instance = f"{os.getpid()}-{secrets.token_hex(8)}"
        self.disk = DiskKeeper(
            self.jobs, max_bytes, max_age, lambda number: self.statistics.add(runs_removed=number)
        )
        self._port, self._http_port = port, http_port
        self._tls_cert, self._tls_key = tls_cert, tls_key
        self._handler = handler
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._everywhere: dict[WatchKey, str] = {}
        self._streams = 0
        self._pending = 0
        self._said: set[object] = set()
        self._grpc: grpc.Server | None = None
        self._http: HttpServer | None = None
        self._state = "new"

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> DebugServer:
        """Bind the ports and begin to serve."""
        if self._state != "new":
            raise UsageError(f"The server is {self._state}; make a new one.")
        from tensortap.server.service import make_grpc_server

        self.root.mkdir(parents=True, exist_ok=True)
        for name in list_jobs(self.root):
            self._jobs[name] = Job(self.root, name, self.limits)
        self._grpc = make_grpc_server(self, self.limits)
        self._bind(self._grpc)
        try:
            if self._http_port is not None:
                from tensortap.server.http import HttpServer

                self._http = HttpServer(self, self.host, self._http_port, self._tls_cert, self._tls_key)
            self.disk.start()
            self._grpc.start()
        except BaseException:
            self._grpc.stop(None)
            raise
        if self._http is not None:
            self._http.start()
        self._state = "running"
        return self

    def _bind(self, server: grpc.Server) -> None:
        import grpc

        if self._port:
            free_socket(self.host, self._port).close()  # gRPC writes about it on the terminal, and not why
        where = f"{_bracketed(self.host)}:{self._port}"
        try:
            if self._tls_cert is not None and self._tls_key is not None:
                pair = _key_and_certificate(self._tls_key, self._tls_cert)
                self._port = server.add_secure_port(where, grpc.ssl_server_credentials([pair]))
            else:
                self._port = server.add_insecure_port(where)
        except RuntimeError as error:
            raise OSError(
                f"Port {self._port} of {self.host} cannot be used: is another server running?"
            ) from error

    def stop(self) -> None:
        """Let waiting clients go on, end the streams, complete their runs; harmless when called again."""
        with self._lock:
            if self._state != "running":
                return
            self._state = "stopped"
        for job in self.jobs():
            job.gates.release_all()
        if self._grpc is not None:
            self._grpc.stop(1.0).wait()
        deadline = time.monotonic() + _STOP_SECS
        while self._streams and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._http is not None:
            self._http.stop()
        self.disk.stop()
        for job in self.jobs():
            job.close()

    def wait(self) -> None:
        """Serve until somebody stops the server."""
        if self._grpc is not None:
            self._grpc.wait_for_termination()

    def __enter__(self) -> DebugServer:
        return self if self._state == "running" else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether streams end because the server does."""
        return self._state == "stopped"

    @property
    def address(self) -> str:
        """Where clients stream to, such as `127.0.0.1:6064`."""
        return f"{_bracketed(self.host)}:{self._port}"

    @property
    def http_address(self) -> str | None:
        """Address of the HTTP interface, such as `http://127.0.0.1:6065`."""
        if self._http is None:
            return None
        return f"{'https' if self.tls else 'http'}://{_bracketed(self.host)}:{self._http.port}"

    # --- jobs --------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """All jobs, in the order they came."""
        with self._lock:
            return list(self._jobs.values())

    def job(self, name: str) -> Job:
        """The job of this name, begun if it is new.

        Raises:
            WireError: the name is none, or there are too many jobs.
        """
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                checked_name(name, "job")
                if len(self._jobs) >= self.limits.jobs:
                    raise WireError(f"The server has {self.limits.jobs} jobs already and takes no more.")
                job = self._jobs[name] = Job(self.root, name, self.limits)
                for key, state in self._everywhere.items():
                    job.gates.set([key], state)
            return job

    def session(self, job: str = DEFAULT_JOB) -> SessionDir:
        """What was received of a job so far, to read.

        Raises:
            OSError: nothing was.
        """
        from tensortap.reader import SessionDir

        return SessionDir(job_directory(self.root, job))

    # --- gates -------------------------------------------------------------------------------------

    def request_watch(
        self,
        node_name: str,
        output_slot: int,
        debug_op: str,
        breakpoint: bool = False,
        job: str | None = None,
    ) -> None:
        """Open the gate of a watch, or make it a breakpoint; clients are told with their next reply (F20).

        Args:
            node_name, output_slot, debug_op: the watch.
            breakpoint: clients also wait after every value.
            job: of which job; of all, those to come included, if it is None.
        """
        key = WatchKey(checked_name(node_name), output_slot, debug_op)
        self._set_gate(key, "breakpoint" if breakpoint else "open", job)

    def request_unwatch(
        self, node_name: str, output_slot: int, debug_op: str, job: str | None = None
    ) -> None:
        """Close the gate of a watch, in one job or in all."""
        self._set_gate(WatchKey(node_name, output_slot, debug_op), CLOSED, job)

    def _set_gate(self, key: WatchKey, state: str, job: str | None) -> None:
        if job is not None:
            self.job(job).set_gates([key], state)
            return
        with self._lock:
            self._everywhere[key] = state
            jobs = list(self._jobs.values())
        for each in jobs:
            each.set_gates([key], state)

    def breakpoints(self, job: str = DEFAULT_JOB) -> list[WatchKey]:
        """The watches at which clients wait, or will once they are told."""
        return [key for key, state in self.job(job).gates.states().items() if state == "breakpoint"]

    def gated_watches(self, job: str = DEFAULT_JOB) -> list[WatchKey]:
        """The gated watches in the graphs received so far."""
        return self.job(job).gated()

    # --- for streams -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def new_stream(self, is_active: Callable[[], bool], patience: float | None = None) -> Iterator[Stream]:
        """A stream that counts as served while it lasts."""
        self.statistics.add(streams=1)
        with self._lock:
            self._streams += 1
        try:
            yield Stream(self, is_active, patience)
        finally:
            with self._lock:
                self._streams -= 1

    def new_handler(self) -> StreamHandler:
        """The handler of a stream that begins; one that does nothing if the user's cannot be made."""
        try:
            return self._handler(self)
        except Exception:
            self.statistics.add(failures=1)
            log.exception("The stream handler could not be made; the stream is only written.")
            return StreamHandler(self)

    def change_pending(self, nbytes: int) -> None:
        """Count bytes that wait for missing chunks.

        Raises:
            WireError: all streams together hold too many; the one that asked is the one to go.
        """
        with self._lock:
            if nbytes > 0 and self._pending + nbytes > self.limits.pending_bytes:
                raise WireError(f"More than {self.limits.pending_bytes} bytes wait for missing chunks.")
            self._pending += nbytes

    def say_once(self, key: object, message: str, *arguments: object) -> None:
        """Log a warning, the first time only."""
        if key not in self._said and len(self._said) < _SAID:
            self._said.add(key)
            log.warning(message, *arguments)

    def gauges(self) -> dict[str, float]:
        """What is the case now."""
        jobs = self.jobs()
        return {
            "active_streams": self._streams,
            "open_runs": sum(job.open_runs for job in jobs),
            "jobs": sum(job.is_known for job in jobs),
            "waiting_at_breakpoints": sum(len(job.gates.hits()) for job in jobs),
            "pending_chunk_bytes": self._pending,
            "disk_bytes": self.disk.used,
            "resident_memory_bytes": resident_bytes(),
            "uptime_seconds": round(time.time() - self.statistics.started, 3),
        }


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_trust(host: str, token: str | None, cert: object, key: object) -> None:
    if (cert is None) != (key is None):
        raise UsageError("TLS needs both files: the certificate (tls_cert) and its key (tls_key).")
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise UsageError("The token must be printable ASCII characters without spaces.")
    if not is_loopback(host) and token is None:
        raise UsageError(
            f"Listening on {host} lets other machines stream to and read from this server: "
            "give it a token (--token or TENSORTAP_TOKEN), or stay on 127.0.0.1 and use an SSH tunnel."
        )
    if not is_loopback(host) and cert is None:
        log.warning("Listening on %s without TLS: the token and all tensors travel unencrypted.", host)


def _key_and_certificate(key: str | Path, cert: str | Path) -> tuple[bytes, bytes]:
    """The contents of both files, if they belong together; what gRPC says about others explains nothing."""
    contents = Path(key).read_bytes(), Path(cert).read_bytes()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        raise UsageError(
            f"{cert} and {key} are no certificate and its key: {error.reason or error}."
        ) from error
    return contents


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def free_socket(host: str, port: int) -> socket.socket:
    """A listening socket; the error names the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(128)
    except OverflowError:
        made.close()
        raise UsageError(f"{port} is no port; they go from 1 to 65535, and 0 takes a free one.") from None
    except OSError as error:
        made.close()
        hint = " Is another server running?" if error.errno == errno.EADDRINUSE else ""
        raise OSError(f"Port {port} of {host} cannot be used: {error.strerror}.{hint}") from error
    return made
