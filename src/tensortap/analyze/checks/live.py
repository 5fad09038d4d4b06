"""Checking a session while it grows: what is sure is told once, as soon as it is known."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensortap.analyze.checks import CheckFinding, check_session, check_updates
from tensortap.analyze.checks.evidence import ENOUGH_BESIDE, ENOUGH_TENSORS
from tensortap.errors import TensortapError
from tensortap.reader import SessionDir
from tensortap.store.updates import GrowingUpdates

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts

__all__ = ["LiveChecks"]

log = logging.getLogger("tensortap.checks")

SHARE = 0.01
"""Of the time that passes, how much of it a session may be read for beside a program. Updates are read at once, unless
there is so much to them that it took more than a moment before."""

MOMENT_SECS = 0.05

SECS_OF_A_BYTE = 1e-7
"""Of the list of what a run has recorded, about."""


class Abandoned(TensortapError):
    """A look is given up in the middle, between two rules, because a whole one follows."""


class LiveChecks:
    """Looks at one session, as often as it is asked to.

    Args:
        root: the session directory.
        accept: what is not to be told.
        tell: called with each finding that is sure, once.

    Attributes:
        faults: looks that failed, which is a fault of ours; the first is logged.
        ends: once it is set, looks beside the program are given up; see `glance`.
    """

    def __init__(self, root: Path, accept: Sequence[str], tell: Callable[[CheckFinding], None]) -> None:
        self._root = root
        self._accept = accept
        self._tell = tell
        self._told: set[str] = set()
        self._runs: dict[str, RunFacts] = {}
        self._updates = GrowingUpdates(root)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._rests_until: float | None = None
        self._updates_rest_until = 0.0
        self.faults = 0
        self.ends = threading.Event()

    def look(self) -> list[CheckFinding]:
        """All that is known so far; a glance that has begun is given up for it."""
        self.ends.set()
        with self._lock:
            self.ends.clear()
            return self._attempt(self._look) or []

    def glance(self) -> list[CheckFinding] | None:
        """What is known so far, beside a program; None if there was no time to read runs, but only updates."""
        with self._lock:
            return self._attempt(self._glance)

    def _attempt(self, action: Callable[[], list[CheckFinding] | None]) -> list[CheckFinding] | None:
        try:
            return action()
        except Abandoned:
            return None
        except Exception:
            self.faults += 1
            if self.faults == 1:
                log.warning("The program could not be checked for what is silently wrong.", exc_info=True)
            return None

    def _look(
        self, pause: Callable[[], None] = lambda: None, enough_tensors: int = ENOUGH_TENSORS
    ) -> list[CheckFinding]:
        session = SessionDir(self._root)
        findings = check_session(
            session,
            accept=self._accept,
            cache=self._runs,
            pause=pause,
            enough_tensors=enough_tensors,
            so_far=self._updates,
        )
        self._tell_new(findings)
        return findings

    def _glance(self) -> list[CheckFinding] | None:
        if time.monotonic() < self._updates_rest_until:
            return None
        began = time.thread_time()
        self._tell_new(check_updates(self._updates, self._accept))
        took = time.thread_time() - began
        if took > MOMENT_SECS:
            self._updates_rest_until = time.monotonic() + took / SHARE
        rests_until = self._rests_until
        if rests_until is None:  # how long the first look will take is to be guessed
            largest = max((each.index_bytes for each in SessionDir(self._root)), default=0)
            rests_until = self._began + SECS_OF_A_BYTE * largest / SHARE
        if time.monotonic() < rests_until:
            return None
        began = time.thread_time()
        try:
            return self._look(self._give_up_at_the_end, ENOUGH_BESIDE)
        finally:
            self._rests_until = time.monotonic() + (time.thread_time() - began) / SHARE

    def _give_up_at_the_end(self) -> None:
        if self.ends.is_set():
            raise Abandoned

    def _tell_new(self, findings: Sequence[CheckFinding]) -> None:
        for finding in findings:
            if finding.is_sure and finding.key not in self._told:
                self._told.add(finding.key)
                self._tell(finding)
