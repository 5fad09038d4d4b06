"""`tensortap view`: the page over recorded directories."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from pathlib import Path

from tensortap.errors import UsageError

HELP = "look at recorded directories in the browser"
DESCRIPTION = """Open the page on recorded directories: the answer, the health of every tensor over all runs, values,
graph, source, ranks and timelines. It needs no network and listens on this machine only.

A directory is a session, one run of it, or one that holds sessions; TensorFlow's own debugger writes them too.
One that is still being written is shown as it grows.

  tensortap view dumps                  in the browser
  tensortap view tensortap-runs         all sessions of `tensortap run`
  tensortap view dumps other-dumps      beside each other
  tensortap view dumps --no-browser     only say where it is
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "directories", type=Path, nargs="+", metavar="DIR", help="session directories, or directories of them"
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")


def run(options: argparse.Namespace) -> int:
    """Execute the command."""
    from tensortap.server.recorded import Viewer

    directories = [found for each in options.directories for found in _sessions(each.expanduser())]
    # A pipe and no `threading.Event`: a second signal while the first is handled would wait for its lock forever.
    stopping, stop = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.write(stop, b"."))
    with Viewer(directories, port=options.port) as viewer:
        print(f"page: {viewer.http_address}/  (Ctrl+C ends it)", file=sys.stderr, flush=True)
        if not options.no_browser:
            _open_browser(viewer.http_address)
        select.select([stopping], [], [])
    return 0


def _sessions(path: Path) -> list[Path]:
    from tensortap.reader.single_run import sessions_in

    if not path.exists():
        raise UsageError(f"There is no directory {str(path)!r}.")
    if not path.is_dir():
        raise UsageError(f"{str(path)!r} is a file; name the session directory.")
    found = sessions_in(path)
    if not found:
        raise UsageError(f"There is no run in {str(path)!r}, nor in the directories inside.")
    return found


def _open_browser(address: str) -> None:
    """Open a browser that shows windows; in a terminal without one the address is enough."""
    import webbrowser

    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        if not os.environ.get("BROWSER"):
            return
    webbrowser.open(f"{address}/")
