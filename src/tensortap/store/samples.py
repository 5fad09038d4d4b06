"""Bad samples that workers of data loaders have made for a process: lines of JSON, which they append and it reads."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from tensortap.records import BadSample
from tensortap.store.layout import samples_path

__all__ = ["SampleLog", "tell_of_sample"]

MOST_BYTES = 1 << 20
"""Of one process: a data set with missing values has them in every batch."""


def tell_of_sample(root: Path, process: int, sample: BadSample) -> None:
    """In a worker: say that a sample was bad, before its batch is handed to the process."""
    path = samples_path(root, process)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(sample.as_dict(), separators=(",", ":")).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.fstat(file).st_size + len(line) <= MOST_BYTES:
            os.write(file, line)  # at once: other workers write, too
    finally:
        os.close(file)


class SampleLog:
    """Reads what the workers of a process have said since it was last asked.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = SampleLog(Path(folder), 1)
    ...     tell_of_sample(Path(folder), 1, BadSample(0, "17", 0, "Set.__getitem__", "data.py:3", 32, 8, 0, 0))
    ...     [each.sample for each in log.news()], log.news()
    (['17'], [])
    """

    def __init__(self, root: Path, process: int) -> None:
        self._path = str(samples_path(root, process))
        self._read = 0

    def news(self) -> list[BadSample]:
        """What is new; a file system that does not answer has no news."""
        try:
            if os.stat(self._path).st_size <= self._read:
                return []
            with open(self._path, "rb") as file:
                file.seek(self._read)
                lines = file.read(MOST_BYTES).splitlines(keepends=True)
        except OSError:
            return []
        found = []
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            with suppress(ValueError, TypeError):
                found.append(BadSample.from_dict(json.loads(line)))
        return found
