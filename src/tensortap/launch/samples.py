"""Which runs are kept for their number alone, and how many at the end: fewer where runs are large."""

from __future__ import annotations

from tensortap.sink.retention import is_sample

__all__ = ["LAST_RECORDS", "LEAST_LAST", "Samples"]

RECORDS = 8_000
"""A run of so many records, which take some 2 MB, is not large."""

FIRST = 4
"""So many runs are kept however large they are."""

LAST_RECORDS, LEAST_LAST = 100_000, 3
"""Of the last runs no more are kept than have so many records together, but so many runs in any case."""


class Samples:
    """Keeps every `n`-th sample of runs that are `n` times as large, so that what is kept does not grow with them.

    Attributes:
        left_out: samples that were not kept, because runs are large.

    >>> samples = Samples()
    >>> samples.size = 3 * RECORDS
    >>> [index for index in range(100) if samples.wants(index)], samples.left_out
    ([0, 1, 2, 3, 6, 9, 30, 60, 90], 10)
    """

    def __init__(self) -> None:
        self.size = 0
        """Records of the last run."""
        self.left_out = 0
        self._earned = 0

    def wants(self, index: int) -> bool:
        """Whether to keep a run that begins; to be asked once for each."""
        if not is_sample(index):
            return False
        self._earned += RECORDS
        if index < FIRST or self._earned >= self.size:
            self._earned = 0
            return True
        self.left_out += 1
        return False
