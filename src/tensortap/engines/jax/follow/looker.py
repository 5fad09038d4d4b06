"""Looking at results as soon as they are there, in a thread of its own, in the memory where they lie.

XLA executes one computation after the other: a check that is queued behind a call holds up the next one. A thread that
waits for the results, as anybody may, reads them while the device goes on, and lets go of what was kept at once.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue

from tensortap.engines.jax.follow.chain import Chain

__all__ = ["Looker"]

log = logging.getLogger("tensortap.hooks")

_PATIENCE = 1.0
"""After so many seconds, whoever waits makes sure that the thread is there."""


class Looker:
    """Looks at the results of calls, one chain after the other."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Chain | None] = SimpleQueue()
        self._told = threading.Condition()
        self._thread: threading.Thread | None = None
        self._has_failed = False

    def look(self, chain: Chain) -> None:
        """Have the results of calls looked at; nobody waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tensortap-sentinel", daemon=True)
            self._thread.start()
        self._queue.put(chain)

    def wait_for(self, chain: Chain) -> None:
        """Wait until the results of calls have been looked at."""
        while chain.bad is None and chain.verdict is None:
            with self._told:
                if chain.bad is None and chain.verdict is None:
                    self._told.wait(_PATIENCE)
            if self._thread is None or not self._thread.is_alive():  # in a process that was forked
                self._look(chain)

    def close(self) -> None:
        """Nothing more will be looked at."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)

    def _work(self) -> None:
        while (chain := self._queue.get()) is not None:
            self._look(chain)
            del chain  # and what it keeps, before the next one is waited for

    def _look(self, chain: Chain) -> None:
        try:
            chain.look()
        except Exception:
            # Given away: then its verdict is queued. Or never made: then the program hears of that itself.
            if chain.verdict is None:
                if not self._has_failed and not chain.is_gone():
                    self._has_failed = True
                    log.warning("Results could not be looked at.", exc_info=True)
                chain.give_up()
        with self._told:
            self._told.notify_all()
