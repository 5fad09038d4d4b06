"""What the server has done since it started, for people and for Prometheus."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Statistics", "prometheus_text"]

_HELP = {
    "streams": "Streams that clients opened.",
    "messages": "Messages received on streams.",
    "received_bytes": "Bytes of these messages.",
    "records": "Records written: tensors and what debug ops made of them.",
    "record_bytes": "Bytes of their values.",
    "dropped": "Records that could not be written.",
    "runs": "Runs begun.",
    "runs_removed": "Runs deleted by retention.",
    "refused": "Calls and streams that were refused or ended because of what the client sent.",
    "broken": "Streams that broke off.",
    "alerts": "Records with NaN or infinite elements.",
    "hits": "Clients that stopped at a breakpoint.",
    "timeouts": "Breakpoints that nobody released in time.",
    "failures": "Errors inside the server and its callbacks.",
}


class Statistics:
    """Counters that only grow; safe to use from several threads.

    >>> statistics = Statistics()
    >>> statistics.add(records=3, record_bytes=24)
    >>> statistics.counts()["records"]
    3
    """

    def __init__(self) -> None:
        self.started = time.time()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(_HELP, 0))

    def add(self, **counts: int) -> None:
        """Count."""
        with self._lock:
            for name, number in counts.items():
                self._counts[name] += number

    def counts(self) -> dict[str, int]:
        """All counters by name."""
        with self._lock:
            return dict(self._counts)


def prometheus_text(counts: Mapping[str, int], gauges: Mapping[str, float]) -> str:
    """Counters and gauges in the text format that Prometheus reads.

    >>> print(prometheus_text({"runs": 2}, {"active_streams": 1.0}), end="")
    # HELP tensortap_server_runs_total Runs begun.
    # TYPE tensortap_server_runs_total counter
    tensortap_server_runs_total 2
    # TYPE tensortap_server_active_streams gauge
    tensortap_server_active_streams 1.0
    """
    lines = []
    for name, number in counts.items():
        metric = f"tensortap_server_{name}_total"
        if name in _HELP:
            lines.append(f"# HELP {metric} {_HELP[name]}")
        lines += [f"# TYPE {metric} counter", f"{metric} {number}"]
    for name, value in gauges.items():
        metric = f"tensortap_server_{name}"
        lines += [f"# TYPE {metric} gauge", f"{metric} {value}"]
    return "\n".join(lines) + "\n"


def resident_bytes() -> int:
    """Memory of this process, 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
