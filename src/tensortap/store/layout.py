"""Names of everything in a session directory. Nothing else in tensortap builds or takes apart these paths.

    session_root/
      tensortap.json                        marker: this is a session directory, and its version
      graphs/<sha256>.pb                    GraphDef messages, once per distinct content
      sources/<sha256>.txt                  source files, once per distinct content
      health/task_<n>.sqlite3               health pills of all runs of one task
      updates/task_<n>.jsonl                steps of optimizers of one task, as far as they were looked at
      processes/<pid>-<epoch ns>.json       what became of each process that wrote here
      samples/<host>-<pid>.jsonl            bad samples that data loaders' workers made for a process
      copies/rank_<n>-<pid>-<epoch ns>.jsonl  checksums of what ranks hold copies of, step by step
      run_<epoch µs>_<counter>/
        run.json                            description of the run
        <device>.index, <device>.data       records of one device

Device and node names come from outside, so they never become part of a path unchecked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import secrets
from pathlib import Path
from typing import Any

from tensortap.errors import DumpFormatError
from tensortap.store.format import VERSION
from tensortap.wire.bounded import read_bounded

__all__ = [
    "DATA_SUFFIX",
    "DESCRIPTION",
    "INDEX_SUFFIX",
    "MARKER",
    "TFDBG_PREFIX",
    "check_marker",
    "compressed_path",
    "content_path",
    "copies_folder",
    "device_stem",
    "health_path",
    "parse_run_name",
    "process_folder",
    "run_name",
    "safe_component",
    "samples_path",
    "stored_path",
    "updates_path",
    "write_atomically",
    "write_marker",
]

MARKER = "tensortap.json"
DESCRIPTION = "run.json"
INDEX_SUFFIX = ".index"
DATA_SUFFIX = ".data"
TFDBG_PREFIX = "_tfdbg_"
"""What the names of everything in the other layout begin with."""

_RUN = re.compile(r"run_(\d{1,20})_(\d{1,20})")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MARKER_FACTS = {"format": "tensortap-session", "version": VERSION}
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")
_FOLDERS = {"graphs": ".pb", "sources": ".txt"}


def run_name(timestamp: int, index: int) -> str:
    """Directory name of a run.

    >>> run_name(1700000000000000, 3)
    'run_1700000000000000_3'
    """
    return f"run_{timestamp}_{index}"


def parse_run_name(name: str) -> tuple[int, int] | None:
    """Timestamp and number of a run directory, None for any other name.

    >>> parse_run_name("run_1700000000000000_3"), parse_run_name("graphs")
    ((1700000000000000, 3), None)
    """
    found = _RUN.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def device_stem(device: str) -> str:
    """File name stem for a device; the device's real name is in the header of its index.

    >>> device_stem("/job:localhost/replica:0/task:0/device:CPU:0")
    'job_localhost.replica_0.task_0.device_CPU_0'
    """
    plain = device.removeprefix("/").replace("/", ".").replace(":", "_")
    if re.fullmatch(r"[A-Za-z][\w.]{0,119}", plain, re.ASCII) and ".." not in plain and device[:1] == "/":
        return plain
    digest = hashlib.sha256(device.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"device.{digest}"


def safe_component(name: str, *, windows: bool = os.name == "nt") -> bool:
    """Whether `name` can be one component of a path here.

    >>> safe_component("addmm"), safe_component(".."), safe_component("a/b"), safe_component("a\\0b")
    (True, False, False, False)
    >>> safe_component("aux", windows=True), safe_component("<lambda>", windows=True)
    (False, False)
    """
    if not 0 < len(name.encode("utf-8", "surrogateescape")) <= 255:
        return False
    if name in {".", ".."} or set(name) & set("/\\") or min(name) < " ":
        return False
    return not windows or not (set(name) & set('<>:"|?*') or name[-1] in ". " or _RESERVED.fullmatch(name))


def content_path(root: Path, folder: str, digest: str) -> Path:
    """Where content with this SHA-256 lives.

    Raises:
        DumpFormatError: `digest` is no SHA-256; it may come from a file.
    """
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise DumpFormatError(f"{str(digest)[:80]!r} is no SHA-256 of stored content.")
    return root / folder / f"{digest}{_FOLDERS[folder]}"


def compressed_path(path: Path) -> Path:
    """Where content lives that is compressed, instead of this path."""
    return path.with_name(f"{path.name}.gz")


def stored_path(root: Path, folder: str, digest: str) -> Path:
    """Where content with this SHA-256 lives, as it is or compressed; as it is if it is not there."""
    path = content_path(root, folder, digest)
    compressed = compressed_path(path)
    return compressed if not path.exists() and compressed.exists() else path


def health_path(root: Path, task: int) -> Path:
    """The health history of one task."""
    return root / "health" / f"task_{int(task)}.sqlite3"


def updates_path(root: Path, task: int) -> Path:
    """The updates of one task."""
    return root / "updates" / f"task_{int(task)}.jsonl"


def process_folder(root: Path) -> Path:
    """Where the processes of a session say what became of them."""
    return root / "processes"


def copies_folder(root: Path) -> Path:
    """Where ranks leave checksums of what they hold copies of."""
    return root / "copies"


def samples_path(root: Path, process: int) -> Path:
    """Where the workers of a process of this machine tell of bad samples."""
    host = hashlib.sha256(platform.node().encode()).hexdigest()[:12]
    return root / "samples" / f"{host}-{process}.jsonl"


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that readers see all of it or none; nothing stays behind on failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_marker(root: Path) -> None:
    """Mark `root` as a session directory; every writer puts the same bytes there."""
    marker = root / MARKER
    if marker.exists():
        check_marker(root)
    else:
        write_atomically(marker, json.dumps(_MARKER_FACTS, sort_keys=True).encode() + b"\n")


def check_marker(root: Path) -> bool:
    """Whether `root` carries the marker.

    Raises:
        DumpFormatError: the marker is damaged or of a newer version.
    """
    marker = root / MARKER
    if not marker.is_file():
        return False
    facts = read_json(marker)
    version = facts.get("version")
    if facts.get("format") != _MARKER_FACTS["format"] or not isinstance(version, int):
        raise DumpFormatError(f"{marker}: not the marker of a tensortap session directory.")
    if version > VERSION:
        raise DumpFormatError(
            f"{marker}: format version {version} is newer than this reader, which knows up to {VERSION}."
        )
    return True


def read_json(path: Path, limit: int = 64 << 20) -> dict[str, Any]:
    """A JSON object from a file of at most `limit` bytes."""
    content = read_bounded(path, limit)
    try:
        facts = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DumpFormatError(f"{path}: not readable as JSON: {error}.") from error
    if not isinstance(facts, dict):
        raise DumpFormatError(f"{path}: expected a JSON object, found {type(facts).__name__}.")
    return facts
