"""The search for bad values and silent mistakes, in a process of its own: `python -m tensortap.server.searching DIR`.

A long session takes seconds of plain Python, which would hold up every request and every stream of the server.
It prints two lines of JSON: the answer as soon as it is known, then the findings.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensortap.errors import TensortapError

__all__ = ["search_apart"]


def search_apart(directory: Path) -> Iterator[dict[str, Any]]:
    """The answer of a session, then its findings.

    Raises:
        TensortapError: the search failed; the message says how.
    """
    command = [sys.executable, "-m", "tensortap.server.searching", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                process.kill()
            said = process.stderr.read()
    if process.returncode:
        raise TensortapError(said.strip().rpartition("\n")[2] or f"It ended with code {process.returncode}.")


def _main(directory: Path) -> None:
    from tensortap.analyze.checks import check_session
    from tensortap.analyze.session import search_session
    from tensortap.reader.single_run import open_session
    from tensortap.report.plain import plain
    from tensortap.server.page_views import describe_findings, describe_report

    with contextlib.suppress(OSError):
        os.nice(5)  # whoever looks at the page, and the program that is watched, come first
    session = open_session(directory)
    print(json.dumps(plain(describe_report(search_session(session), session))), flush=True)
    print(json.dumps(plain(describe_findings(check_session(session)))), flush=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
