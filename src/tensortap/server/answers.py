"""The answer about a job while it is being received: which rank made its first bad value, and where."""

from __future__ import annotations

import threading
import time
from typing import Any

from tensortap.analyze.session import search_session
from tensortap.server.job import Job
from tensortap.server.views import session_of
from tensortap.store.description import RUNNING, read_description

__all__ = ["Answers"]

FRESH_SECS = 1.0
"""An answer that was asked for by somebody else so recently is given again."""


class Answers:
    """Works out the same report as `tensortap why`, and remembers which runs need not be looked at again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cleared: dict[str, set[str]] = {}
        self._given: dict[str, tuple[float, dict[str, Any]]] = {}

    def of(self, job: Job) -> dict[str, Any]:
        """The report about a job, and which of its ranks are being received."""
        with self._lock:  # one at a time: whoever comes second takes what the first has found
            when, answer = self._given.get(job.name, (0.0, {}))
            if time.monotonic() - when > FRESH_SECS:
                answer = self._worked_out(job)
                self._given[job.name] = time.monotonic(), answer
            return answer

    def _worked_out(self, job: Job) -> dict[str, Any]:
        cleared = self._cleared.setdefault(job.name, set())
        session = session_of(job)
        goes_on = job.open_runs > 0
        report = search_session(session, cleared=cleared, goes_on=goes_on)
        for each in report.reports:
            is_good = not each.findings and not each.was_tested
            if is_good and read_description(session.root / each.name).status != RUNNING:
                cleared.add(each.name)
        return {"job": job.name, "goes_on": goes_on, **report.as_dict()}
