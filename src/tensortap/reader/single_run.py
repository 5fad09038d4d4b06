"""A run directory by itself, as a session of one run; and directories as people name them."""

from __future__ import annotations

from pathlib import Path

from tensortap.reader.session_dir import RunRef, SessionDir
from tensortap.store.layout import MARKER, parse_run_name
from tensortap.store.stored_run import open_run

__all__ = ["SingleRun", "open_session", "sessions_in"]


class SingleRun(SessionDir):
    """What `SessionDir` answers, of one run: also of one that is in no session, such as a dump of tfdbg's."""

    def refresh(self) -> bool:
        """Nothing is ever added."""
        before = self.runs
        place = self.root.absolute()
        self.runs = [RunRef(place.parent, place.name, *_number_of(place))]
        return before != self.runs


def _number_of(path: Path) -> tuple[int, int]:
    """Timestamp and number of a run: those in its name, or what it tells itself."""
    named = parse_run_name(path.name)
    if named is not None:
        return named
    try:
        told = open_run(path).core_metadata
    except (OSError, ValueError):
        told = []
    return 0, told[0].session_run_index if told else 0


def open_session(path: Path) -> SessionDir:
    """The session in a directory, or the run that it is.

    Raises:
        OSError: there is no such directory.
        LookupError: there is no run in it.
    """
    session = SessionDir(path)
    if session.runs or (path / MARKER).is_file():
        return session
    single = SingleRun(path)
    try:
        run = single.runs[0].open(validate=False)
    except (OSError, ValueError):
        return session
    return single if run.devices() or run.source.core_metadata else session


def sessions_in(path: Path) -> list[Path]:
    """The directory itself if there is a run in it, else the sessions inside, newest first."""
    if open_session(path).runs:
        return [path]
    found = [each for each in path.iterdir() if each.is_dir() and any(each.glob("run_*"))]
    return sorted(found, key=lambda each: each.stat().st_mtime, reverse=True)
