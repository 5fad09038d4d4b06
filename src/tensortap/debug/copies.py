"""When a rank takes checksums of what others hold copies of, and where it leaves them.

Ranks say nothing to each other: each looks at its own memory, and readers compare. So ranks have to look after the same
steps. Each looks after every 1, 2, 4 … steps, as often as a small share of its time pays for: of two such
distances one is always a multiple of the other.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path

from tensortap.records.copies import Copied, CopyCheck
from tensortap.sink.queue import shared_queue
from tensortap.store.copies import CopiesFile

__all__ = ["CopyChecks"]

log = logging.getLogger("tensortap.hooks")

SHARE = 0.02
"""Of the time of a step that checks may take."""
_CHECKS_PER_DOUBLING = 256
"""A file stays small however long the training is: from so many steps on every second one is looked at, and so on."""
_LONGEST = 1 << 20
_ALWAYS = 16
"""The first steps are all looked at: what goes wrong in them is in how the job was set up."""


class CopyChecks:
    """The checks of this rank.

    Args:
        root: the session directory.
        share: of the time, as above.
        clock: in seconds.

    >>> import tempfile
    >>> checks = CopyChecks(Path(tempfile.mkdtemp()))
    >>> checks.is_due(0)
    True
    """

    def __init__(
        self, root: Path, share: float = SHARE, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._root, self._share, self._clock = root, share, clock
        self._every = 1
        self._file: CopiesFile | None = None
        self._failed = False
        self._last: tuple[int, float] | None = None  # step and time of the last check
        self._own_secs, self._own_steps = 0.0, 0

    def is_due(self, step: int) -> bool:
        """Whether to look after this step."""
        if self._failed or step < _ALWAYS:
            return not self._failed
        floor = 1
        while floor * _CHECKS_PER_DOUBLING <= step and floor < _LONGEST:
            floor *= 2
        return step % max(floor, self._every) == 0

    def worked(self, secs: float) -> None:
        """A step went by in which this rank worked so long before it exchanged something with the others."""
        self._own_secs += secs
        self._own_steps += 1

    def take(
        self, step: int, rank: int, world: int, seed: int, sums: Callable[[], dict[Copied, int]]
    ) -> None:
        """Look now; it is written in the background."""
        began = self._clock()
        found = sums()
        steps, secs = 1, 0.0
        if self._last is not None:
            steps = max(1, step - self._last[0])
            secs = (began - self._last[1]) / steps
        own = self._own_secs / self._own_steps if self._own_steps else 0.0
        self._own_secs, self._own_steps = 0.0, 0
        check = CopyCheck(step, time.time(), steps, secs, own, found)
        shared_queue().submit(lambda: self._write(check, rank, world, seed))
        now = self._clock()
        self._last = (step, now)
        if secs:
            self._pace((now - began) / secs)

    def close(self) -> None:
        """Everything has been written."""
        if self._file is not None:
            self._file.close()

    def _pace(self, steps_worth: float) -> None:
        """Look more seldom if a check takes too many steps' time, more often if it takes next to nothing."""
        if steps_worth > self._share * self._every and self._every < _LONGEST:
            self._every *= 2
        elif steps_worth < self._share * self._every / 4 and self._every > 1:
            self._every //= 2

    def _write(self, check: CopyCheck, rank: int, world: int, seed: int) -> None:
        if self._failed:
            return
        try:
            if self._file is None:
                self._file = CopiesFile(self._root, rank, world, socket.gethostname(), seed)
            self._file.write(check)
        except (OSError, ValueError) as error:  # a full disk: then this rank is not compared
            self._failed = True
            log.warning("Checksums for comparing ranks are not written any more: %s", error)
