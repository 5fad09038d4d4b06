"""What `tensortap run` says of what is silently wrong: what is sure at once, all of it at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensortap.analyze.checks import CheckFinding

__all__ = ["RunChecks"]

log = logging.getLogger("tensortap.checks")


class RunChecks:
    """Checks one session while it grows.

    Args:
        root: the session directory.
        accept: what is not to be told.
        say: told each finding that is sure, once, in a sentence.
    """

    def __init__(self, root: Path, accept: Sequence[str], say: Callable[[str], None]) -> None:
        self._root = root
        self._accept = accept
        self._say = say
        self._said: set[str] = set()
        self._runs: dict[str, Any] = {}
        self._lock = threading.Lock()

    def look(self) -> list[CheckFinding]:
        """What is known so far; what is sure and new is said."""
        from tensortap.analyze.checks import check_session
        from tensortap.reader import SessionDir
        from tensortap.report.check import spoken

        with self._lock:
            try:
                findings = check_session(SessionDir(self._root), accept=self._accept, cache=self._runs)
            except Exception:
                log.warning("The program could not be checked for what is silently wrong.", exc_info=True)
                return []
            for finding in findings:
                if finding.is_sure and finding.key not in self._said:
                    self._said.add(finding.key)
                    self._say(spoken(finding))
        return findings
