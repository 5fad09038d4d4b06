"""`DebugServer`: receives what running jobs stream, keeps it as session directories, and answers over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.errors import UsageError
from tensortap.extras import require
from tensortap.server.gates import CLOSED, WatchKey
from tensortap.server.handler import StreamHandler
from tensortap.server.job import DEFAULT_JOB, Job
from tensortap.server.limits import Limits, checked_name
from tensortap.server.network import bracketed, check_trust, free_socket, key_and_certificate
from tensortap.server.reception import Reception
from tensortap.server.statistics import Statistics, resident_bytes
from tensortap.store.server_root import job_directory

if TYPE_CHECKING:
    import grpc

    from tensortap.reader import SessionDir
    from tensortap.server.http import HttpServer

__all__ = ["DebugServer"]

_STOP_SECS = 5.0


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
        check_trust(host, token, tls_cert, tls_key)
        require("stream" if http_port is None else "serve", "The debug server")
        self.root = Path(root).expanduser()
        self.host = host
        self.token = token
        self.reception = Reception(
            self.root,
            limits or Limits(),
            lambda: handler(self),
            breakpoint_timeout=breakpoint_timeout,
            max_bytes=max_bytes,
            max_age=max_age,
        )
        self._port, self._http_port = port, http_port
        self._tls_cert, self._tls_key = tls_cert, tls_key
        self._lock = threading.Lock()
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
        self.reception.jobs.load()
        self._grpc = make_grpc_server(self.reception, self.token)
        self._bind(self._grpc)
        try:
            if self._http_port is not None:
                from tensortap.server.http import HttpServer

                self._http = HttpServer(self, self.host, self._http_port, self._tls_cert, self._tls_key)
            self.reception.disk.start()
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
        where = f"{bracketed(self.host)}:{self._port}"
        try:
            if self._tls_cert is not None and self._tls_key is not None:
                pair = key_and_certificate(self._tls_key, self._tls_cert)
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
            self.reception.is_stopping = True
        for job in self.jobs():
            job.gates.release_all()
        if self._grpc is not None:
            self._grpc.stop(1.0).wait()
        self.reception.wait_for_streams(_STOP_SECS)
        if self._http is not None:
            self._http.stop()
        self.reception.disk.stop()
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
    def limits(self) -> Limits:
        """What clients may send."""
        return self.reception.limits

    @property
    def breakpoint_timeout(self) -> float:
        """Seconds that a client waits at a breakpoint."""
        return self.reception.breakpoint_timeout

    @property
    def statistics(self) -> Statistics:
        """What the server has done since it started."""
        return self.reception.statistics

    @property
    def address(self) -> str:
        """Where clients stream to, such as `127.0.0.1:6064`."""
        return f"{bracketed(self.host)}:{self._port}"

    @property
    def http_address(self) -> str | None:
        """Address of the HTTP interface, such as `http://127.0.0.1:6065`."""
        if self._http is None:
            return None
        return f"{'http' if self._tls_cert is None else 'https'}://{bracketed(self.host)}:{self._http.port}"

    # --- jobs --------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """All jobs, in the order they came."""
        return self.reception.jobs.all()

    def job(self, name: str) -> Job:
        """The job of this name, begun if it is new.

        Raises:
            WireError: the name is none, or there are too many jobs.
        """
        return self.reception.jobs.named(name)

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
        self.reception.jobs.set_gate(key, "breakpoint" if breakpoint else "open", job)

    def request_unwatch(
        self, node_name: str, output_slot: int, debug_op: str, job: str | None = None
    ) -> None:
        """Close the gate of a watch, in one job or in all."""
        self.reception.jobs.set_gate(WatchKey(node_name, output_slot, debug_op), CLOSED, job)

    def breakpoints(self, job: str = DEFAULT_JOB) -> list[WatchKey]:
        """The watches at which clients wait, or will once they are told."""
        return [key for key, state in self.job(job).gates.states().items() if state == "breakpoint"]

    def gated_watches(self, job: str = DEFAULT_JOB) -> list[WatchKey]:
        """The gated watches in the graphs received so far."""
        return self.job(job).gated()

    def describe(self) -> dict[str, Any]:
        """What is said of this process over HTTP."""
        return {
            "version": version("tensortap"),
            "is_live": True,
            "address": self.address,
            "root": str(self.root.absolute()),
            "started": self.statistics.started,
            "counts": self.statistics.counts(),
            "now": self.gauges(),
            "limits": asdict(self.limits),
            "breakpoint_timeout": self.breakpoint_timeout,
        }

    def gauges(self) -> dict[str, float]:
        """What is the case now."""
        jobs = self.jobs()
        return {
            "active_streams": self.reception.streams,
            "open_runs": sum(job.open_runs for job in jobs),
            "jobs": sum(job.is_known for job in jobs),
            "waiting_at_breakpoints": sum(len(job.gates.hits()) for job in jobs),
            "pending_chunk_bytes": self.reception.pending.nbytes,
            "disk_bytes": self.reception.disk.used,
            "resident_memory_bytes": resident_bytes(),
            "uptime_seconds": round(time.time() - self.statistics.started, 3),
        }
