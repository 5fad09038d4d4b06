"""Saver: checkpoints of a session's state on disk, crash-safe, of which the newest few are kept.

A checkpoint is one file `<basename>-<step>` that the engine writes. A small JSON file `checkpoints.json` beside it
lists the checkpoints with their sizes, newest last. Both are replaced atomically, the pointer after the
checkpoint, so whatever the pointer names was complete. When the pointer is missing or unreadable, or names
files that are gone or cut short, the newest file that looks like a checkpoint is used.

Earlier versions called the pointer `checkpoint`, as TensorFlow calls its own, and TensorBoard took it for that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensortap.errors import AbortedError, CheckpointError, UnavailableError
from tensortap.hooks.files import replace_file, temporary_siblings
from tensortap.hooks.finite import describe, non_finite_state

__all__ = ["Saver", "latest_checkpoint"]

_log = logging.getLogger("tensortap.hooks")

POINTER_NAME = "checkpoints.json"
_EARLIER_POINTER_NAME = "checkpoint"
_FORMAT_VERSION = 1
_CHECKPOINT_NAME = re.compile(r"(?!\.|events\.out\.|.*\.data-\d+-of-\d+$)(?P<basename>.+)-(?P<step>\d+)")


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """One checkpoint as the pointer file lists it."""

    name: str
    bytes: int


class Saver:
    """Writes and reads checkpoints through a session's `save_state` and `load_state`.

    Args:
        max_to_keep: how many checkpoints of one basename stay in a directory; None or 0 keeps all.

    Example:
        >>> import tempfile, torch
        >>> import tensortap as tt
        >>> session = tt.torch.Session(lambda x: {"loss": x.sum()})
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Saver().save(session, f"{directory}/model.ckpt", global_step=7)
        ...     Saver().restore(session, path)
        ...     latest_checkpoint(directory) == path, path.name
        (True, 'model.ckpt-7')
    """

    def __init__(self, max_to_keep: int | None = 5) -> None:
        if max_to_keep is not None and max_to_keep < 0:
            raise ValueError(f"max_to_keep must be positive, or None to keep all, got {max_to_keep}.")
        self.max_to_keep = max_to_keep
        self._swept: set[Path] = set()

    def save(self, session: Any, path_prefix: str | os.PathLike[str], global_step: int | None = None) -> Path:
        """Write a checkpoint.

        A state that holds NaN or infinities is saved too, for you asked for it, but not without a warning.

        Args:
            session: an engine session that has `save_state`.
            path_prefix: directory and basename; the directory is made if needed.
            global_step: added to the basename as `-<step>`.

        Returns:
            Path of the checkpoint.

        Raises:
            CheckpointError: it could not be written. The earlier checkpoints are untouched.
        """
        prefix = Path(path_prefix)
        path = prefix if global_step is None else prefix.with_name(f"{prefix.name}-{int(global_step)}")
        if not callable(getattr(session, "save_state", None)):
            raise CheckpointError(
                f"Cannot save {path}: a session of type {type(session).__name__} has no save_state(path)."
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sweep(prefix)
            bad = [each for each in non_finite_state(session) if each.kind == "parameter" or each.nan]
            replace_file(path, session.save_state)
            self._update_pointer(path, prefix.name)
        except (CheckpointError, AbortedError, UnavailableError):
            raise
        except Exception as error:
            raise CheckpointError(f"Cannot save the checkpoint {path}: {error}") from error
        if bad:
            _log.warning("The checkpoint %s is saved, but %s.", path, describe(bad))
        return path

    def restore(self, session: Any, path: str | os.PathLike[str]) -> None:
        """Put the state of a checkpoint into the session.

        Raises:
            CheckpointError: there is no such file, or it does not fit the session.
        """
        path = Path(path)
        if not path.is_file():
            raise CheckpointError(f"There is no checkpoint {path}.")
        if not callable(getattr(session, "load_state", None)):
            raise CheckpointError(
                f"Cannot restore {path}: a session of type {type(session).__name__} has no load_state(path)."
            )
        try:
            session.load_state(path)
        except (CheckpointError, AbortedError, UnavailableError):
            raise
        except Exception as error:
            raise CheckpointError(f"Cannot restore the checkpoint {path}: {error}") from error
        _log.info("Restored %s", path)

    def latest_checkpoint(self, directory: str | os.PathLike[str]) -> Path | None:
        """The newest complete checkpoint in a directory, or None."""
        return latest_checkpoint(directory)

    def _sweep(self, prefix: Path) -> None:
        """Remove what a crashed writer left; once per place, because it is rare."""
        if prefix in self._swept:
            return
        self._swept.add(prefix)
        for leftover in temporary_siblings(prefix.parent, prefix.name):
            with contextlib.suppress(OSError):
                leftover.unlink()

    def _update_pointer(self, path: Path, basename: str) -> None:
        directory = path.parent
        entries = [e for e in _read_pointer(directory) or () if e.name != path.name]
        entries.append(_Checkpoint(path.name, path.stat().st_size))
        family = [e for e in entries if _basename(e.name) == basename]
        expired = family[: -self.max_to_keep] if self.max_to_keep else []
        kept = [e for e in entries if e not in expired]
        content = {"version": _FORMAT_VERSION, "checkpoints": [asdict(e) for e in kept]}
        replace_file(directory / POINTER_NAME, lambda file: _write_json(file, content))
        if _entries(directory / _EARLIER_POINTER_NAME) is not None:
            with contextlib.suppress(OSError):
                (directory / _EARLIER_POINTER_NAME).unlink()
        # Only after the pointer stopped naming them, so that it never names a file that is gone.
        for entry in expired:
            with contextlib.suppress(OSError):
                (directory / entry.name).unlink()


def latest_checkpoint(directory: str | os.PathLike[str]) -> Path | None:
    """The newest complete checkpoint in a directory, or None.

    >>> latest_checkpoint("no/such/directory") is None
    True
    """
    directory = Path(directory)
    entries = _read_pointer(directory)
    for entry in reversed(entries or ()):
        path = directory / entry.name
        if path.is_file() and path.stat().st_size == entry.bytes:
            return path
        _log.warning("The checkpoint %s is missing or incomplete; looking for an earlier one.", path)
    found = [file for file in _files(directory) if _CHECKPOINT_NAME.fullmatch(file.name)]
    if entries:
        # These were judged above.
        found = [file for file in found if file.name not in {entry.name for entry in entries}]
    return max(found, key=lambda file: (file.stat().st_mtime_ns, _step(file.name)), default=None)


def _files(directory: Path) -> list[Path]:
    try:
        return [file for file in directory.iterdir() if file.is_file()]
    except OSError:
        return []


def _basename(name: str) -> str:
    match = _CHECKPOINT_NAME.fullmatch(name)
    return match["basename"] if match else name


def _step(name: str) -> int:
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match["step"]) if match else -1


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _read_pointer(directory: Path) -> list[_Checkpoint] | None:
    """The entries of the pointer file, oldest first; None if it cannot be used."""
    path = directory / POINTER_NAME
    if not path.exists():
        return _entries(directory / _EARLIER_POINTER_NAME)  # or TensorFlow's, which is no concern of ours
    entries = _entries(path)
    if entries is None:
        _log.warning("The pointer file %s is unreadable; looking for checkpoints by name.", path)
    return entries


def _entries(path: Path) -> list[_Checkpoint] | None:
    """What a pointer file lists; None if there is none, or it is not ours."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = [_Checkpoint(str(each["name"]), int(each["bytes"])) for each in content["checkpoints"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # A name is a file of this directory, never a way out of it.
    return [entry for entry in entries if entry.name == os.path.basename(entry.name)]
