"""The senders of this process: whoever streams to the same server in the same way shares one, as long as it is used."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref

from tensortap.sink.stream.sender import Sender, unsaid
from tensortap.sink.stream_options import StreamOptions

__all__ = ["close_all", "sender_of"]

_senders: weakref.WeakValueDictionary[tuple[str, StreamOptions], Sender] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def sender_of(address: str, options: StreamOptions) -> Sender:
    """The sender for a server and a way to stream; it is there while somebody holds it or has records on their way.

    >>> sender = sender_of("localhost:6064", StreamOptions())
    >>> sender is sender_of("localhost:6064", StreamOptions())
    True
    >>> sender is sender_of("localhost:6064", StreamOptions(max_wait_secs=1))
    False
    """
    with _lock:
        if not _ends_with_program:
            atexit.register(_end_all)
            _ends_with_program.append(True)
        sender = _senders.get((address, options))
        if sender is None:
            sender = _senders[address, options] = Sender(address, options)
        return sender


def close_all() -> None:
    """Give up what has not been sent, and know no sender any more."""
    for sender in list(_senders.values()):
        sender.close()
    _senders.clear()
    unsaid.clear()


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
    while unsaid:
        unsaid.popleft().tell()


def _begin_child() -> None:
    """After a fork: threads and connections stayed with the parent, and so did the duty to send."""
    global _lock
    _lock = threading.Lock()
    _left_to_the_parent.extend(_senders.values())
    _senders.clear()
    unsaid.clear()


_ends_with_program: list[bool] = []
_left_to_the_parent: list[Sender] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
