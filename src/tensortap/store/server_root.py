"""The root of a debug server: one session directory per job, and what the server must remember about each.

    root/
      <job>/                 a session directory, as in `layout.py`
        job.json             the real name of the job, its gates and its alerts

Names of jobs come from the network. A plain one names its directory; any other gets a readable stem and a
digest, so that no two names meet and none leads elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from tensortap.store.layout import MARKER, read_json, write_atomically

__all__ = ["JOB_FACTS", "job_directory", "list_jobs", "read_job_facts", "write_job_facts"]

JOB_FACTS = "job.json"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def job_directory(root: Path, job: str) -> Path:
    """The session directory of a job.

    >>> job_directory(Path("root"), "gpt-2").name, job_directory(Path("root"), "../x").name
    ('gpt-2', 'x.d6b96a97d147')
    """
    if _PLAIN.fullmatch(job):
        return root / job
    digest = hashlib.sha256(job.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", job).strip("_")[:40]
    return root / f"{readable or 'job'}.{digest}"


def list_jobs(root: Path) -> dict[str, Path]:
    """The session directory of every job, by its real name."""
    found = {}
    with os.scandir(root) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False) and (path / MARKER).is_file():
                name = read_job_facts(path).get("job", entry.name)
                # What the file says counts only if the name leads back here.
                if isinstance(name, str) and job_directory(root, name) == path:
                    found[name] = path
    return found


def read_job_facts(directory: Path) -> dict[str, Any]:
    """What was remembered about a job; empty if nothing was or it is damaged."""
    try:
        return read_json(directory / JOB_FACTS)
    except (OSError, ValueError):
        return {}


def write_job_facts(directory: Path, facts: dict[str, Any]) -> None:
    """Replace what is remembered about a job."""
    write_atomically(directory / JOB_FACTS, json.dumps(facts, indent=1).encode() + b"\n")
