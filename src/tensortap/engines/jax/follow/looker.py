"""Looking at results as soon as they are there, in a thread of its own, in the memory where they lie.

XLA executes one computation after the other: a check that is queued behind a call holds up the next one. A thread that
waits for the results, as anybody may, reads them while the device goes on, and lets go of what was kept at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from tensortap.engines.jax.follow.pending import Pending
from tensortap.engines.jax.taps.library import Library, Memory

__all__ = ["Looker"]

log = logging.getLogger("tensortap.hooks")

_PATIENCE = 1.0
"""After so many seconds, whoever waits makes sure that the thread is there."""


class Looker:
    """Looks at the results of calls, one call after the other.

    Args:
        library: reads the memory.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._queue: SimpleQueue[Pending | None] = SimpleQueue()
        self._told = threading.Condition()
        self._thread: threading.Thread | None = None
        self._has_failed = False

    def look(self, pending: Pending) -> None:
        """Have the results of a call looked at; nobody waits."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tensortap-sentinel", daemon=True)
            self._thread.start()
        self._queue.put(pending)

    def wait_for(self, pending: Pending) -> None:
        """Wait until the results of a call have been looked at."""
        while not pending.is_told:
            with self._told:
                if not pending.is_told:
                    self._told.wait(_PATIENCE)
            if self._thread is None or not self._thread.is_alive():  # in a process that was forked
                self._look(pending)

    def close(self) -> None:
        """Nothing more will be looked at."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)

    def _work(self) -> None:
        while (pending := self._queue.get()) is not None:
            self._look(pending)
            del pending  # and what it keeps, before the next one is waited for

    def _look(self, pending: Pending) -> None:
        group = (*pending.covered, pending)
        try:
            if pending.covered and not any(map(any, self._kinds_of_group(pending))):
                for each in group:
                    each.tell({})
        except Exception:
            log.debug("calls are looked at one by one", exc_info=True)
        for each in group:
            if not each.is_told:
                self._look_at_one(each)
        with self._told:
            self._told.notify_all()

    def _kinds_of_group(self, pending: Pending) -> Iterator[Sequence[int]]:
        """Kinds of bad values in all that must be looked at of a call and those before it that show in it."""
        for each in pending.covered:
            if each.function.little:
                little = [each.results[place] for place in each.function.little]
                yield self._kinds_in(each.function.little_memory, little)
        yield self._kinds_in(pending.function.memory, pending.results)

    def _look_at_one(self, pending: Pending) -> None:
        results = pending.results
        kinds: Sequence[int] = ()
        try:
            kinds = self._kinds_in(pending.function.memory, results)
        except Exception:
            # Given away: then its verdict is queued. Or never made: then the program hears of that itself.
            if not pending.is_told and not self._has_failed and not _are_gone(results):
                self._has_failed = True
                log.warning("Results could not be looked at.", exc_info=True)
        if not pending.is_told:
            pending.tell(dict(zip(pending.function.floats, kinds, strict=False)))

    def _kinds_in(self, memory: Memory | None, results: Sequence[Any]) -> Sequence[int]:
        assert memory is not None
        for each in results:
            each.block_until_ready()
        # While these views are there, nobody can take the memory away: who gives an array away gets a copy of it.
        views = [each._single_device_array_to_np_array_did_copy() for each in results]
        addresses = [
            view.ctypes.data if is_copy else each.unsafe_buffer_pointer()
            for each, (view, is_copy) in zip(results, views, strict=True)
        ]
        return self._library.look(memory, addresses)


def _are_gone(results: Sequence[Any]) -> bool:
    try:
        return any(each.is_deleted() for each in results) or not all(
            each.block_until_ready() is each for each in results
        )
    except Exception:  # the computation has failed
        return True
