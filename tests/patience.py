"""How long tests wait for something before they call it a failure.

A limit is written as it is right on an idle machine. On a busy one it is longer: whoever competes for a processor
takes as many times as long as there are competitors. TENSORTAP_PATIENCE multiplies all limits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MOST = 30.0


def patience() -> float:
    """How many times longer than on an idle machine things may take now."""
    return float(os.environ.get("TENSORTAP_PATIENCE", "1")) * min(_MOST, max(1.0, 2 * _competitors()))


def patient(seconds: float) -> float:
    """A limit for a wait that begins now; never short, for the machine may become busy while it lasts."""
    return 3 * seconds * patience()


def wait_until(condition: Callable[[], Any], seconds: float = 10.0, pause: float = 0.01) -> Any:
    """Wait until something holds, and give it back; the limit follows how busy the machine is meanwhile."""
    begin = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - begin < patient(seconds), "it did not happen in time"
        time.sleep(pause)
    return found


def finished(command: list[Any], seconds: float = 60.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with what it said as text; killed with all it started if it takes too long."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            out, errors = process.communicate(given, patient(seconds))
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def _competitors() -> float:
    """Threads that want to run, for each processor: now, or over the last minute if that is more."""
    try:
        minute, _, _, running, _ = Path("/proc/loadavg").read_text().split()
        return max(float(minute), float(running.partition("/")[0])) / (os.cpu_count() or 1)
    except (OSError, ValueError):
        return 1.0
