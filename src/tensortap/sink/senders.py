"""The senders of this process: one for each debug server, ended with the program."""

from __future__ import annotations

import atexit
import os
import threading
import time

from tensortap.sink.sender import Sender
from tensortap.sink.stream_options import StreamOptions

__all__ = ["close_all", "sender_of"]

_senders: dict[tuple[str, str | None, str | None], Sender] = {}
_lock = threading.Lock()


def sender_of(address: str, options: StreamOptions) -> Sender:
    """The sender of this process for a server; the newest options count.

    >>> sender_of("localhost:6064", StreamOptions()) is sender_of("localhost:6064", StreamOptions())
    True
    """
    with _lock:
        key = (address, options.token, options.ca_file)
        if not _senders:
            atexit.register(_end_all)
        sender = _senders.get(key)
        if sender is None:
            sender = _senders[key] = Sender(address, options)
        sender.use(options)
        return sender


def close_all() -> None:
    """Give up what has not been sent, and know no sender any more."""
    while _senders:
        _senders.popitem()[1].close()


def _end_all() -> None:
    """The program ends: wait a little, then count what is left as dropped."""
    senders = list(_senders.values())
    begin = time.monotonic()
    for sender in senders:
        if not sender.was_waited_for:
            sender.flush(max(0.0, begin + sender.options.flush_secs - time.monotonic()))
    for sender in senders:
        sender.close()
        sender.report()


def _begin_child() -> None:
    """After a fork: threads and connections stayed with the parent, and so did the duty to send."""
    global _lock
    _lock = threading.Lock()
    _left_to_the_parent.extend(_senders.values())
    _senders.clear()


_left_to_the_parent: list[Sender] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
