"""What somebody who looks at a job wants to have ready: its answer, the mosaic of its health, facts of its runs.

All of it is worked out by a thread of its own, so that no request waits for a long session: what is not ready yet is
said to be. The thread ends when nobody has asked for a while.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, Protocol

from tensortap.analyze.facts import RunFacts, facts_of_dump
from tensortap.reader import RunRef, SessionDir
from tensortap.reader.mosaic import SessionMosaic
from tensortap.server.alerts import AlertRegistry
from tensortap.server.gates import Gates
from tensortap.server.searching import search_apart
from tensortap.store.session import health_files, run_size

__all__ = ["Look", "Looks", "Viewed"]

log = logging.getLogger(__name__)

_LOOKS = 4
"""Jobs whose pictures are kept."""
_RUNS = 4
"""Runs of a job whose facts are kept."""
_PAUSE_SECS = 0.25
_IDLE_SECS = 60.0
_PART_SECS = 0.02
_FIRST_PICTURE_SECS = 1.0
"""The search for bad values lets the first picture of the grid go ahead, so long at most."""
_SEARCH_PAUSE = 4
"""The search for bad values rests this many times as long as it took, so that a job that grows all the time leaves
time for everything else."""


class Viewed(Protocol):
    """A job as it is looked at: one that streams, or a recorded directory."""

    name: str
    directory: Path
    gates: Gates
    alerts: AlertRegistry

    @property
    def id(self) -> str:
        """What it is called in addresses."""

    @property
    def open_runs(self) -> int:
        """How many runs are being received."""

    def session(self) -> SessionDir:
        """What was recorded."""


class Look:
    """One job, looked at.

    Attributes:
        mosaic: of the health of all tensors; None until the first run is there.
        answer: as `page_views.describe_report` tells it, None while it is being searched for the first time.
        lock: held by whoever reads or changes the mosaic.
        answered: grows with every new answer.
        findings: what is silently wrong.
        checked: grows whenever that was looked for.
        runs: how many there are.
        is_begun: set when some of the mosaic was read.
        is_shown: set when somebody was sent a picture of the grid.
    """

    def __init__(self, job: Viewed) -> None:
        self.job = job
        self.mosaic: SessionMosaic | None = None
        self.answer: dict[str, Any] | None = None
        self.findings: dict[str, Any] = {"findings": [], "left_out": 0}
        self.checked = 0
        self.problem = ""
        self.answered = 0
        self.is_searching = False
        self.runs = 0
        self.lock = threading.Lock()
        self.is_begun = threading.Event()
        self.is_shown = threading.Event()
        self._reading = threading.Lock()
        self._facts: OrderedDict[tuple[str, int], RunFacts] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._asked = 0.0
        self._seen: Any = None
        self._searched: Any = None
        self._search_again = 0.0
        self._starting = threading.Lock()

    @property
    def first_bad(self) -> dict[str, Any] | None:
        """The first bad value, if it is known."""
        found: dict[str, Any] | None = None if self.answer is None else self.answer["report"]["first_bad"]
        return found

    def ask(self) -> Look:
        """Keep it up to date from now on, for a while."""
        self._asked = time.monotonic()
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="tensortap-look", daemon=True)
                self._thread.start()
                threading.Thread(target=self._search_on, name="tensortap-search", daemon=True).start()
        return self

    def state(self) -> dict[str, Any]:
        """What has changed since, in numbers that grow; for events."""
        job, mosaic = self.job, self.mosaic
        return {
            "job": job.id,
            "runs": self.runs,
            "receiving": job.open_runs,
            "answer": self.answered,
            "searching": self.is_searching,
            "findings": self.checked,
            # While much is read, a new picture now and then is enough.
            "grid": 0
            if mosaic is None
            else mosaic.version
            if mosaic.is_complete
            else -1 - int(16 * mosaic.progress),
            "grid_progress": 0.0 if mosaic is None else round(mosaic.progress, 3),
            "alerts": job.alerts.version,
            "gates": job.gates.version,
            "waiting": [hit.id for hit in job.gates.hits()],
        }

    @property
    def has_facts(self) -> bool:
        """Whether the facts of a run are at hand."""
        return bool(self._facts)

    def facts(self, ref: RunRef) -> RunFacts:
        """The facts of a run."""
        key = ref.name, run_size(ref.path)
        with self._reading:
            facts = self._facts.get(key)
            if facts is None:
                facts = self._facts[key] = facts_of_dump(ref.open(validate=False))
                while len(self._facts) > _RUNS:
                    self._facts.popitem(last=False)
            self._facts.move_to_end(key)
            return facts

    # --- in threads of their own -------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        return time.monotonic() - self._asked < _IDLE_SECS

    def _work(self) -> None:
        while self._is_wanted():
            try:
                if not self._advance():
                    time.sleep(_PAUSE_SECS)
            except Exception:
                log.exception("The health of %s could not be read", self.job.name)
                time.sleep(10 * _PAUSE_SECS)

    def _advance(self) -> bool:
        """Read some more; whether there is still more."""
        seen = self._signature()
        with self.lock:
            if self.mosaic is None:
                session = self.job.session()
                self.runs = len(session)
                self.mosaic, self._seen = SessionMosaic(session), seen
            elif seen != self._seen and self.mosaic.is_complete:
                self.mosaic.refresh()
                self.runs = len(self.mosaic.session)
                self._seen = seen
        # Without the lock in between, so that whoever wants a picture of what is there need not wait.
        mosaic = self.mosaic
        if not mosaic.is_complete:
            with self.lock:
                mosaic.advance(_PART_SECS)
            self.is_begun.set()
            time.sleep(0.002)
        self.is_begun.set()
        return not mosaic.is_complete

    def _search_on(self) -> None:
        self.is_shown.wait(_FIRST_PICTURE_SECS)
        while self._is_wanted():
            seen = self._signature()
            if seen == self._searched or time.monotonic() < self._search_again:
                time.sleep(_PAUSE_SECS)
                continue
            began = time.monotonic()
            self.is_searching = True
            try:
                for kind, found in zip(
                    ("answer", "findings"), search_apart(self.job.directory), strict=False
                ):
                    self.take(**{kind: found})
                self.problem = ""
            except Exception as error:
                log.warning("The answer of %s could not be worked out", self.job.name, exc_info=True)
                self.problem = f"{type(error).__name__}: {error}"
                self.answered += 1
            finally:
                self.is_searching = False
            self._searched = seen
            self._search_again = time.monotonic() + _SEARCH_PAUSE * (time.monotonic() - began)

    def take(self, answer: dict[str, Any] | None = None, findings: dict[str, Any] | None = None) -> None:
        """Show what a search has found."""
        if answer is not None:
            self.answer = answer
            self.answered += 1
            self.is_searching = False
        if findings is not None:
            self.findings = findings
            self.checked += 1

    def _signature(self) -> Any:
        """Differs when something was written to the session."""
        session = self.job.session() if self.mosaic is None else self.mosaic.session
        paths = [session.root, *health_files(session.root).values()]
        return [_changed(path) for path in paths]


def _changed(path: Any) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


class Looks:
    """The looks at the jobs that somebody has asked for last; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: OrderedDict[str, Look] = OrderedDict()

    def at(self, job: Viewed) -> Look:
        """The look at a job, kept up to date from now on."""
        with self._lock:
            look = self._looks.get(job.id)
            if look is None:
                look = self._looks[job.id] = Look(job)
                while len(self._looks) > _LOOKS:
                    self._looks.popitem(last=False)
            self._looks.move_to_end(job.id)
        return look.ask()
