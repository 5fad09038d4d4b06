"""Delivers to a debug server what was spooled while it was away, in a thread of its own."""

from __future__ import annotations

import threading
from pathlib import Path

from tensortap.sink.base import log
from tensortap.sink.stream.connection import LOST_CODES, Connection
from tensortap.sink.stream.link import Link
from tensortap.sink.stream.spool import Spool, without_batches
from tensortap.wire.transport import grpc

__all__ = ["Delivery"]

_SLOWEST_SECS, _SLOWEST_RATE = 30.0, 1e6


class Delivery:
    """The spool of one server, if its options name a place for one.

    `start`, `expect` and `is_under_way` are for whoever holds the lock of the link.

    Attributes:
        spool: where runs go that the server cannot take.
        runs: how many were delivered.
        is_under_way: a thread is at it.
    """

    def __init__(self, link: Link, connection: Connection) -> None:
        self._link = link
        self._connection = connection
        self.runs = 0
        self.is_under_way = False
        self._may_find_some = True
        options = link.options
        self.spool = (
            None
            if options.spool_dir is None
            else Spool(options.spool_dir, link.address, options.spool_max_bytes)
        )

    def expect(self) -> None:
        """There may be something to deliver: the server is back, or a run was spooled."""
        self._may_find_some = True

    def start(self) -> bool:
        """Deliver what there is; False if there is nothing to do."""
        if not self._link.availability.is_answering or self.is_under_way or not self._may_find_some:
            return False
        spool, self._may_find_some = self.spool, False
        if spool is None or not spool.files():
            return False
        self.is_under_way = True
        threading.Thread(target=self._deliver, args=(spool,), name="tensortap-deliver", daemon=True).start()
        return True

    def _deliver(self, spool: Spool) -> None:
        try:
            for path in spool.files():
                if self._link.availability.is_answering:
                    self._deliver_file(spool, path)
        except Exception:
            log.exception("Delivering spooled runs to the debug server %s failed.", self._link.address)
        with self._link.changed:
            self.is_under_way = False
            self._link.changed.notify_all()

    def _deliver_file(self, spool: Spool, path: Path) -> None:
        with spool.claim(path) as messages:
            if messages is None:
                return  # another rank has it
            takes_batches = self._link.availability.takes_batches
            call = self._connection.stream(
                messages if takes_batches else without_batches(messages),
                self._link.options,
                timeout=_SLOWEST_SECS + path.stat().st_size / _SLOWEST_RATE,
            )
            try:
                for _ in call:
                    pass
            except grpc.RpcError:
                if call.code() in (*LOST_CODES, grpc.StatusCode.DEADLINE_EXCEEDED):
                    return  # it stays for another time
                log.warning(
                    "The debug server %s refused the spooled run %s: %s",
                    self._link.address,
                    path,
                    call.details(),
                )
                path.replace(path.with_suffix(".refused"))
            else:
                path.unlink(missing_ok=True)
                self.runs += 1
