"""Whether what a directory holds is what was written: every value read and compared with its checksum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensortap.store.session import list_runs
from tensortap.store.stored_run import open_run

__all__ = ["RunVerification", "Verifications", "verify_directory"]


@dataclass(frozen=True, slots=True)
class RunVerification:
    """What was found in one run.

    Attributes:
        name: of its directory.
        values: how many were read.
        checked: how many of them had a checksum: all, unless an earlier version wrote them.
        damage: one sentence for each value that is not what was written, and for what cannot be read at all.
        notices: what else is unusual, such as a run that has not finished.
    """

    name: str
    values: int
    checked: int
    damage: tuple[str, ...]
    notices: tuple[str, ...]

    @property
    def is_damaged(self) -> bool:
        """Whether something is not what was written."""
        return bool(self.damage)


class Verifications:
    """The runs of a directory, each verified when its turn comes."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[RunVerification]:
        return map(_verify, self._paths)


def verify_directory(path: Path) -> Verifications:
    """Every run of a session directory, or the one run that the directory is.

    Raises:
        OSError: there is no such directory.
        DumpFormatError: it was written by a newer version.
    """
    runs, _ = list_runs(path)
    return Verifications([path / name for name, *_ in runs] or [path])


def _verify(path: Path) -> RunVerification:
    try:
        source = open_run(path)
    except (OSError, ValueError) as error:
        return RunVerification(path.name, 0, 0, (f"cannot be read: {error}",), ())
    damage, values, checked = [*source.damage], 0, 0
    notices = [each for each in source.notices if each not in damage]
    for tensors in source.tensors.values():
        for tensor in tensors:
            values += 1
            checked += tensor.is_checked
            try:
                tensor.load()
            except (OSError, ValueError) as error:
                damage.append(str(error))
    return RunVerification(path.name, values, checked, tuple(damage), tuple(notices))
