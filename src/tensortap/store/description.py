"""The description of one run: a small JSON file, written when the run starts and replaced when it ends."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tensortap.errors import DumpFormatError
from tensortap.records import Circumstances, RunInfo
from tensortap.store.format import VERSION
from tensortap.store.layout import DESCRIPTION, read_json, write_atomically

__all__ = ["FAILED", "FINISHED", "RUNNING", "RunDescription", "read_description", "write_description"]

RUNNING, FINISHED, FAILED = "running", "finished", "failed"
_FORMAT = "tensortap-run"


@dataclass(frozen=True, slots=True)
class RunDescription:
    """What `run.json` says.

    Attributes:
        status: `running` until the run was finished, then `finished`, or `failed` with an `error`.
        counts: what the sink counted, such as records dropped for a budget.
        graphs: SHA-256 of the stored GraphDef by device name.
        sources: SHA-256 of the stored file by path.
        notes: sentences the writer wants readers to see.
        circumstances: what the engine knows of the run besides.

    >>> RunDescription(RunInfo(index=0, global_step=5, timestamp=1)).status
    'running'
    """

    info: RunInfo
    status: str = RUNNING
    error: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    graphs: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    circumstances: Circumstances = field(default_factory=Circumstances)


_INFO_FIELDS = [each.name for each in fields(RunInfo)]


def write_description(run_dir: Path, description: RunDescription) -> int:
    """Replace the description of a run atomically; the number of bytes written."""
    facts: dict[str, Any] = {
        "format": _FORMAT,
        "version": VERSION,
        **{name: getattr(description.info, name) for name in _INFO_FIELDS},
        **{f.name: getattr(description, f.name) for f in fields(RunDescription) if f.name != "info"},
        "circumstances": description.circumstances.as_dict(),
    }
    content = json.dumps(facts, indent=1).encode() + b"\n"
    write_atomically(run_dir / DESCRIPTION, content)
    return len(content)


def read_description(run_dir: Path) -> RunDescription:
    """The description of a run.

    Raises:
        DumpFormatError: it is damaged or of a newer version.
        FileNotFoundError: there is none.
    """
    path = run_dir / DESCRIPTION
    facts = read_json(path)
    version = facts.get("version")
    if facts.get("format") != _FORMAT or not isinstance(version, int):
        raise DumpFormatError(f"{path}: not the description of a tensortap run.")
    if version > VERSION:
        raise DumpFormatError(
            f"{path}: format version {version} is newer than this reader, which knows up to {VERSION}. "
            "Upgrade tensortap to read it."
        )
    try:
        return RunDescription(
            RunInfo(**{name: check(facts[name]) for name, check in _CHECKS.items() if name in facts}),
            status=_text(facts.get("status", RUNNING)),
            error=None if facts.get("error") is None else _text(facts["error"]),
            counts={_text(key): _whole(n) for key, n in facts.get("counts", {}).items()},
            graphs={_text(key): _text(digest) for key, digest in facts.get("graphs", {}).items()},
            sources={_text(key): _text(digest) for key, digest in facts.get("sources", {}).items()},
            notes=_texts(facts.get("notes", ())),
            circumstances=Circumstances.from_dict(facts.get("circumstances", {})),
        )
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise DumpFormatError(f"{path}: a field has the wrong form: {error}.") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, found {value!r}")
    return tuple(map(_text, value))


_CHECKS: dict[str, Any] = {
    "index": _whole,
    "global_step": _whole,
    "timestamp": _whole,
    "task": _whole,
    "fetches": _text,
    "feed_keys": _text,
    "input_names": _texts,
    "output_names": _texts,
    "target_nodes": _texts,
}
