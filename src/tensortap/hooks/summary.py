"""Event files for TensorBoard: one writer per directory, shared by all hooks that write there.

A full disk or a vanished directory must not end a training run, so a writer that cannot write says so once,
counts what it dropped, and goes on. Messages are imported when they are needed, because that takes a noticeable
time.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.hooks.writers import SummaryWriter
from tensortap.store.event_file import EventFile

__all__ = ["EventWriter", "FileWriterCache", "get_event_writer"]

_log = logging.getLogger("tensortap.hooks")
_file_numbers = itertools.count()

_FLUSH_SECS = 10.0
"""How old an event may get before TensorBoard can see it."""
_RETRY_SECS = 30.0
"""A full disk is rarely emptied sooner."""


class EventWriter(SummaryWriter):
    """Writes one event file into a directory.

    Args:
        directory: made if it does not exist.

    Attributes:
        directory: where the file is.
        dropped: how many events could not be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     writer = EventWriter(directory)
    ...     writer.add_scalar("loss", 0.5, step=1)
    ...     writer.close()
    ...     len(list(Path(directory).glob("events.out.tfevents.*")))
    1
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__()
        self.directory = Path(directory)
        self._lock = threading.Lock()
        self._records: EventFile | None = None
        self._closed = False
        self._next_flush = self._next_attempt = 0.0
        self._graph_digest: bytes | None = None
        with self._lock:
            self._open()

    def _open(self) -> None:
        from tensortap.wire.messages import Event

        name = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}."
            f"{next(_file_numbers)}"
        )
        version = Event(wall_time=time.time(), file_version="brain.Event:2")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._records = EventFile(self.directory / name)
            self._records.write(version.SerializeToString())
            self._records.flush()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Count the loss, and go on in a new file later: nothing is readable behind a torn record."""
        self.dropped += 1
        if self.dropped == 1:
            _log.error("Cannot write events to %s; events will be missing there: %s", self.directory, error)
        self._next_attempt = time.monotonic() + _RETRY_SECS
        records, self._records = self._records, None
        if records is not None:
            with contextlib.suppress(OSError, ValueError):
                records.close()

    # --- events ------------------------------------------------------------------------------------

    def add_event(self, event: Any) -> None:
        """Write an `Event` message."""
        with self._lock:
            now = time.monotonic()
            if self._records is None and not self._closed and now >= self._next_attempt:
                self._open()
            if self._records is None:
                self.dropped += 1
                return
            try:
                self._records.write(event.SerializeToString())
                if now >= self._next_flush:
                    self._next_flush = now + _FLUSH_SECS
                    self._records.flush()
            except (OSError, ValueError) as error:
                self._failed(error)

    def _add(self, step: int = 0, **content: Any) -> None:
        from tensortap.wire.messages import Event

        self.add_event(Event(wall_time=time.time(), step=int(step), **content))

    def add_graph(self, graph_def: Any, step: int = 0) -> None:
        """Write a graph and its meta-graph; the graph that was written last is not repeated."""
        from tensortap.wire.messages import MetaGraphDef

        serialized = graph_def.SerializeToString(deterministic=True)
        digest = hashlib.sha256(serialized).digest()
        if digest == self._graph_digest:
            return
        self._graph_digest = digest
        self._add(step, graph_def=serialized)
        meta_graph = MetaGraphDef()
        meta_graph.graph_def.ParseFromString(serialized)
        self._add(step, meta_graph_def=meta_graph.SerializeToString())

    def add_summary(self, summary: Any, step: int) -> None:
        """Write a `Summary` message, or the bytes of one."""
        from tensortap.wire.messages import Summary

        if not isinstance(summary, Summary):  # the bytes of one, or TensorFlow's or TensorBoard's
            summary = Summary.FromString(
                summary if isinstance(summary, bytes) else summary.SerializeToString()
            )
        self._add(step, summary=summary)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Write one number."""
        from tensortap.wire.messages import Summary

        self.add_summary(Summary(value=[Summary.Value(tag=tag, simple_value=float(value))]), step)

    def add_histogram(self, tag: str, values: Any, step: int) -> None:
        """Write the distribution of an array; values that are not finite are left out."""
        from tensortap.wire.messages import Summary

        self.add_summary(Summary(value=[Summary.Value(tag=tag, histo=_histogram(values))]), step)

    def add_session_start(self, step: int) -> None:
        """Note that a session starts at `step`; TensorBoard then drops later steps of an earlier session."""
        self._add_session_log("START", step)

    def add_checkpoint(self, path: str, step: int) -> None:
        """Note that a checkpoint was written."""
        self._add_session_log("CHECKPOINT", step, checkpoint_path=path)

    def _add_session_log(self, status: str, step: int, **content: Any) -> None:
        from tensortap.wire.messages import SessionLog

        self._add(step, session_log=SessionLog(status=SessionLog.SessionStatus.Value(status), **content))

    def add_run_metadata(self, run_metadata: Any, tag: str, step: int = 0) -> None:
        """Write a `RunMetadata` message, or the bytes of one, under a tag such as `step_7`."""
        from tensortap.wire.messages import TaggedRunMetadata

        content = run_metadata if isinstance(run_metadata, bytes) else run_metadata.SerializeToString()
        self._add(step, tagged_run_metadata=TaggedRunMetadata(tag=tag, run_metadata=content))

    # --- the file ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand everything written so far to the operating system; also done regularly."""
        with self._lock:
            if self._records is not None:
                try:
                    self._records.flush()
                except (OSError, ValueError) as error:
                    self._failed(error)

    def close(self) -> None:
        """Close the file; events added later are counted as dropped."""
        self.flush()
        with self._lock:
            self._closed = True
            records, self._records = self._records, None
            if records is not None:
                with contextlib.suppress(OSError, ValueError):
                    records.close()


class FileWriterCache:
    """One event writer per directory, so that several hooks share one file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     same = FileWriterCache.get(directory) is FileWriterCache.get(directory)
    ...     FileWriterCache.clear()
    >>> same
    True
    """

    _writers: dict[Path, EventWriter] = {}  # noqa: RUF012, shared on purpose
    _lock = threading.Lock()

    @classmethod
    def get(cls, directory: str | os.PathLike[str]) -> EventWriter:
        """The writer of a directory."""
        key = Path(directory).absolute()
        with cls._lock:
            if key not in cls._writers:
                cls._writers[key] = EventWriter(directory)
            return cls._writers[key]

    @classmethod
    def clear(cls) -> None:
        """Close and forget all writers."""
        with cls._lock:
            for writer in cls._writers.values():
                writer.close()
            cls._writers.clear()


atexit.register(FileWriterCache.clear)


def get_event_writer(directory: str | os.PathLike[str]) -> EventWriter:
    """The shared event writer of a directory."""
    return FileWriterCache.get(directory)


_HISTOGRAM_BUCKETS = 30
"""As many as TensorBoard shows; it resamples finer histograms anyway."""


def _histogram(values: Any) -> Any:
    from tensortap.wire.messages import HistogramProto

    flat = np.asarray(values).astype(np.float64).ravel()
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return HistogramProto(bucket_limit=[0.0], bucket=[0.0])
    with np.errstate(all="ignore"):
        sums = float(flat.sum()), float(np.square(flat).sum())
        try:
            counts, edges = np.histogram(flat, bins=_HISTOGRAM_BUCKETS)
        except ValueError:
            # The range is too narrow or too wide to be split: all in one bucket.
            counts, edges = np.array([flat.size]), np.array([flat.min(), flat.max()])
    return HistogramProto(
        min=flat.min(),
        max=flat.max(),
        num=flat.size,
        sum=sums[0],
        sum_squares=sums[1],
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )
