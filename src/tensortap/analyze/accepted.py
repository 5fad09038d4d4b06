"""What somebody has said he knows of: `kind:subject`, in a command, or for good in `pyproject.toml`.

[tool.tensortap]
accept = ["same-batch:x", "never-gets-gradient:model/spare/*"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tensortap.errors import UsageError

__all__ = ["accepted_near", "accepted_of", "is_kind"]


def is_kind(text: str, kinds: Iterable[str]) -> bool:
    """Whether a text begins with a kind of finding, so that it names what is to be accepted.

    >>> is_kind("same-batch:x", ["same-batch"]), is_kind("attn/.*mask", ["same-batch"])
    (True, False)
    """
    kind = text.partition(":")[0].strip()
    return any(fnmatchcase(each, kind) for each in kinds) and kind.strip("*?") != ""


def accepted_near(*folders: Path) -> list[str]:
    """What the projects of these folders accept: the nearest `pyproject.toml` in or above each of them.

    Raises:
        UsageError: one says something else than a list of texts there.
    """
    files = dict.fromkeys(filter(None, (_project_of(folder) for folder in folders)))
    return [each for file in files for each in accepted_of(file)]


def accepted_of(file: Path) -> list[str]:
    """What one `pyproject.toml` accepts; nothing if it cannot be read as one.

    Raises:
        UsageError: it says something else than a list of texts there.
    """
    try:
        told: Any = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("tensortap", {})
    except (OSError, ValueError, AttributeError):
        return []
    accepted = told.get("accept", []) if isinstance(told, dict) else []
    if not isinstance(accepted, list) or not all(isinstance(each, str) for each in accepted):
        raise UsageError(
            f'{file}: `accept` in [tool.tensortap] is a list of texts, as in accept = ["same-batch:x"]; '
            f"found {accepted!r}."
        )
    return accepted


def _project_of(folder: Path) -> Path | None:
    folder = folder.absolute()
    for each in (folder, *folder.parents):
        if (each / "pyproject.toml").is_file():
            return each / "pyproject.toml"
    return None
