"""Who may write into a session root.

A session root must be new or empty, so that two sessions never mix. The exception is one session of several
ranks: processes of one launch may share a root. A launch is named by TENSORTAP_SESSION_ID, or by what
torchrun and its relatives put into the environment of every rank. Each rank leaves a claim in `.session/`; a
root that is not empty is accepted if all claims in it are of the same launch and none is this rank's own. A
rank that its launcher restarts claims again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tensortap.seam.place import told_by_launchers
from tensortap.store.layout import write_marker

__all__ = ["Launch", "claim_session_root"]

CLAIMS = ".session"


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch this process belongs to, if it is one of several ranks.

    >>> Launch.of({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}).rank
    1
    >>> Launch.of({}) is None
    True
    """

    name: str
    rank: int
    restart: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch | None:
        """Read it from environment variables."""
        environment = told_by_launchers(environment)
        given = environment.get("TENSORTAP_SESSION_ID", "")
        if not given and _number(environment, "WORLD_SIZE") < 2:
            return None
        run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
        # When ranks are started again, there may be fewer of them, at another port.
        parts = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE") if run_id == "none" else ("TORCHELASTIC_RUN_ID",)
        name = given or " ".join(environment.get(each, "") for each in parts)
        restart = _number(environment, "TORCHELASTIC_RESTART_COUNT")
        return cls(name, _number(environment, "RANK"), restart)

    @property
    def digest(self) -> str:
        """Short form of the name."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:16]

    @property
    def claim(self) -> str:
        """File name of this rank's claim."""
        return f"{self.digest}-rank{self.rank}-{self.restart}"


def claim_session_root(session_root: str | os.PathLike[str]) -> Path:
    """Make sure that this process may write into `session_root`, and create it if it does not exist.

    Raises:
        ValueError: it is a file, or a directory that is not empty and not shared by ranks of one launch.

    >>> import tempfile
    >>> claim_session_root(Path(tempfile.mkdtemp()) / "dumps").name
    'dumps'
    """
    root = Path(session_root).expanduser()
    if root.exists() and not root.is_dir():
        raise ValueError(f"session_root {str(root)!r} is a file; it must be a new or empty directory.")
    root.mkdir(parents=True, exist_ok=True)
    launch = Launch.of(os.environ)
    entries = set(os.listdir(root))
    if entries and (launch is None or CLAIMS not in entries):
        raise ValueError(
            f"session_root {str(root)!r} is a directory that is not empty, so it may belong to another "
            "session; it must be a new or empty directory."
        )
    if launch is not None:
        _claim(root, launch)
    write_marker(root)
    return root


def _claim(root: Path, launch: Launch) -> None:
    claims = root / CLAIMS
    claims.mkdir(exist_ok=True)
    foreign = [name for name in os.listdir(claims) if not name.startswith(f"{launch.digest}-")]
    if foreign:
        raise ValueError(
            f"session_root {str(root)!r} is not empty: it belongs to another launch than this one "
            f"({launch.name!r}). Choose a new directory."
        )
    try:
        (claims / launch.claim).touch(exist_ok=False)
    except FileExistsError:
        raise ValueError(
            f"session_root {str(root)!r} is not empty: rank {launch.rank} of this launch ({launch.name!r}) "
            "writes into it already, or did in an earlier launch of the same name. Choose a new directory, "
            "or set TENSORTAP_SESSION_ID to something new for all ranks."
        ) from None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else 0
