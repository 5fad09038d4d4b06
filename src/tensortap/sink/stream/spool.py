"""Streams kept on disk for a debug server that is away, delivered when it is back or by the next program.

A file holds the messages of one stream, each behind its length. Whoever writes or delivers a file holds a lock on
it, which ends with its process: a file that nobody holds is there to be delivered, and if its writer was killed, up
to its last whole message.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tensortap.errors import TensortapError
from tensortap.sink.stream.messages import GraphCache
from tensortap.wire.batches import BatchDecoder
from tensortap.wire.debug_service import Event
from tensortap.wire.events import BATCH, RUN_END, kind_of, tensor_events

__all__ = ["Spool", "SpoolFull", "without_batches"]

_LENGTH = struct.Struct("<I")
_SUFFIX = ".stream"


class SpoolFull(TensortapError, OSError):
    """There is no room for another message."""


class Spool:
    """The directory for one server.

    Args:
        directory: shared by all servers, and by all programs that stream to them.
        address: of the server.
        max_bytes: how much may be kept for it.

    >>> import tempfile
    >>> spool = Spool(tempfile.mkdtemp(), "localhost:6064", 1000)
    >>> spool.write("run", [b"first", b"second"])
    >>> with spool.claim(spool.files()[0]) as messages:
    ...     list(messages)
    [b'first', b'second']
    """

    def __init__(self, directory: str | os.PathLike[str], address: str, max_bytes: int) -> None:
        self.folder = Path(directory).expanduser() / re.sub(r"[^\w.-]+", "_", address)
        self.max_bytes = max_bytes
        self.graphs = GraphCache(sends_once=False)  # every file can stand alone
        self._lock = threading.Lock()
        self._writers = 0
        self._used_bytes = 0

    def files(self) -> list[Path]:
        """What is there to be delivered, oldest first."""
        return sorted(self.folder.glob(f"*{_SUFFIX}")) if self.folder.is_dir() else []

    def write(self, name: str, messages: Iterable[bytes]) -> None:
        """Keep a stream.

        Raises:
            SpoolFull: it would be too much; nothing of the stream is kept.
            OSError: the disk is full or fails.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}-{os.getpid()}{_SUFFIX}"
        begun = path.with_suffix(".begun")  # not to be found before it is locked
        with self._counting(), open(begun, "xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            begun.rename(path)
            try:
                for message in messages:
                    self._take_room(_LENGTH.size + len(message))
                    file.write(_LENGTH.pack(len(message)) + message)
            except BaseException:
                path.unlink(missing_ok=True)
                raise

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Know what is in the folder, also while several streams are written."""
        with self._lock:
            if not self._writers:
                self._used_bytes = sum(path.stat().st_size for path in self.files())
            self._writers += 1
        try:
            yield
        finally:
            with self._lock:
                self._writers -= 1

    def _take_room(self, nbytes: int) -> None:
        with self._lock:
            if self._used_bytes + nbytes > self.max_bytes:
                raise SpoolFull(f"{self.folder} may hold {self.max_bytes} bytes, which is not enough")
            self._used_bytes += nbytes

    @contextmanager
    def claim(self, path: Path) -> Iterator[Iterator[bytes] | None]:
        """The messages of a file, for this process alone; None if somebody else has it or took it away."""
        with ExitStack() as stack:
            messages = None
            with suppress(FileNotFoundError, BlockingIOError):
                file = stack.enter_context(open(path, "rb"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                messages = _messages(file)
            yield messages


def _messages(file: BinaryIO) -> Iterator[bytes]:
    while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
        message = file.read(_LENGTH.unpack(head)[0])
        if len(message) < _LENGTH.unpack(head)[0]:
            return  # its writer was killed here
        yield message


def without_batches(messages: Iterable[bytes]) -> Iterator[bytes]:
    """The same stream for a server that takes none."""
    decoder = BatchDecoder()
    for message in messages:
        event = Event.FromString(message)
        kind = kind_of(event)
        if kind == BATCH:
            for record in decoder.decode(event) or ():
                yield from tensor_events(record)
        elif kind != RUN_END:
            yield message
