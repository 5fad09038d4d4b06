"""A run directory by itself, as a session of one run; and directories as people name them."""

from __future__ import annotations

from pathlib import Path

from tensortap.reader.session_dir import RunRef, SessionDir
from tensortap.store.layout import MARKER

__all__ = ["SingleRun", "open_session", "sessions_in"]


class SingleRun(SessionDir):
    """What `SessionDir` answers, of one run: also of one that is in no session, such as a dump of tfdbg's."""

    def refresh(self) -> bool:
        """Nothing is ever added."""
        before = self.runs
        place = self.root.absolute()
        self.runs = [RunRef(place.parent, place.name, 0, 0)]
        return before != self.runs


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
