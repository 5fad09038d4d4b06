"""Checking a session while it grows: what is sure is told once, as soon as it is known."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensortap.analyze.checks import CheckFinding, check_session, check_updates
from tensortap.reader import SessionDir

if TYPE_CHECKING:
    from tensortap.analyze.facts import RunFacts

__all__ = ["LiveChecks"]

log = logging.getLogger("tensortap.checks")


class LiveChecks:
    """Looks at one session, as often as it is asked to.

    Args:
        root: the session directory.
        accept: what is not to be told.
        tell: called with each finding that is sure, once.

    Attributes:
        faults: looks that failed, which is a fault of ours; the first is logged.
    """

    def __init__(self, root: Path, accept: Sequence[str], tell: Callable[[CheckFinding], None]) -> None:
        self._root = root
        self._accept = accept
        self._tell = tell
        self._told: set[str] = set()
        self._runs: dict[str, RunFacts] = {}
        self._lock = threading.Lock()
        self.faults = 0

    def look(self) -> list[CheckFinding]:
        """What is known so far; what updates show is told before runs are read, which takes longer."""
        with self._lock:
            try:
                self._tell_new(check_updates(self._root, self._accept))
                findings = check_session(SessionDir(self._root), accept=self._accept, cache=self._runs)
                self._tell_new(findings)
            except Exception:
                self.faults += 1
                if self.faults == 1:
                    log.warning("The program could not be checked for what is silently wrong.", exc_info=True)
                return []
        return findings

    def _tell_new(self, findings: Sequence[CheckFinding]) -> None:
        for finding in findings:
            if finding.is_sure and finding.key not in self._told:
                self._told.add(finding.key)
                self._tell(finding)
