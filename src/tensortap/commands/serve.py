"""`tensortap serve`: the debug server."""

from __future__ import annotations

import argparse
import os
import re
import select
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tensortap.errors import UsageError

if TYPE_CHECKING:
    from tensortap.server import DebugServer

HELP = "receive what running jobs stream, and keep it as session directories"
DESCRIPTION = """Serve tfdbg's debug protocol, and a JSON interface over HTTP beside it.

Jobs that use GrpcDebugHook, or TensorFlow's own debugger with a grpc:// URL, stream to it. Every job becomes a
session directory under the root, which all commands can read while it grows.

  tensortap serve                                    on this machine only
  tensortap serve --root runs --max-bytes 50G        keep at most 50 GB of runs
  tensortap serve --host 0.0.0.0 --token SECRET      for other machines too; add --tls-cert and --tls-key

Then stream to grpc://127.0.0.1:6064, or to grpc://127.0.0.1:6064/NAME to name the job.
"""

DEFAULT_PORT = 6064
_ANNOUNCE_SECS = 0.5
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("debug-runs"),
        metavar="DIR",
        help="where runs go (default %(default)s)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        help="port of the gRPC service (default %(default)s; 0: a free one)",
    )
    parser.add_argument(
        "--http-port", type=int, help="port of the HTTP interface (default: the next one; 0: a free one)"
    )
    parser.add_argument("--no-http", action="store_true", help="do without the HTTP interface")
    parser.add_argument(
        "--token", help="what clients must present (default: the environment variable TENSORTAP_TOKEN)"
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain in PEM form")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key")
    parser.add_argument(
        "--max-bytes", metavar="SIZE", help="of all runs, such as 50G; the oldest are deleted first"
    )
    parser.add_argument("--max-age", metavar="TIME", help="delete runs older than this, such as 12h or 7d")
    parser.add_argument(
        "--breakpoint-timeout",
        type=float,
        default=300.0,
        metavar="SECS",
        help="how long a client waits at a breakpoint for somebody to release it (default %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.server import DebugServer
    from tensortap.server.memory import reuse_memory

    http_port = options.http_port
    if http_port is None:
        http_port = options.port + 1 if options.port else 0
    server = DebugServer(
        options.root,
        host=options.host,
        port=options.port,
        http_port=None if options.no_http else http_port,
        token=options.token or os.environ.get("TENSORTAP_TOKEN") or None,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        max_bytes=None
        if options.max_bytes is None
        else int(_quantity(options.max_bytes, _UNITS, "--max-bytes")),
        max_age=None if options.max_age is None else _quantity(options.max_age, _TIMES, "--max-age"),
        breakpoint_timeout=options.breakpoint_timeout,
    )
    reuse_memory()
    # A pipe and no `threading.Event`: a second signal while the first is handled would wait for its lock forever.
    stopping, stop = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.write(stop, b"."))
    with server:
        print(f"streams: grpc://{server.address}", file=sys.stderr)
        if server.http_address is not None:
            print(f"page:    {server.http_address}/", file=sys.stderr)
        print(
            f"runs:    {options.root}/<job>; every job is named here when its first run comes",
            file=sys.stderr,
        )
        sys.stderr.flush()
        known: set[Path] = set()
        while not select.select([stopping], [], [], _ANNOUNCE_SECS)[0]:
            _announce(server, known)
    counts = server.statistics.counts()
    print(f"received {counts['records']} records in {counts['runs']} runs", file=sys.stderr)
    return 0


def _announce(server: DebugServer, known: set[Path]) -> None:
    """Say where the runs of every job go that has been heard of since; most jobs name themselves."""
    for job in server.jobs():
        if job.directory not in known and job.latest_run >= 0:
            known.add(job.directory)
            where = shlex.quote(str(job.directory))
            print(f"job {job.name}: tensortap health {where} --follow", file=sys.stderr, flush=True)


def _quantity(text: str, units: dict[str, int], option: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]?)(?:i?[bB])?", text.strip())
    if found is None or found[2].lower() not in units or not float(found[1]):
        known = ", ".join(unit for unit in units if unit)
        raise UsageError(f"{option} must be a positive number with one of the units {known}; got {text!r}.")
    return float(found[1]) * units[found[2].lower()]
