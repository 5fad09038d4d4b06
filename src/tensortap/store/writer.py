"""Writing a session directory: one `SessionStore` per process and root, one `RunWriter` per debugged run.

A value goes to the data file of its device before the entry that refers to it goes to the index, each in one
positioned write, and positions only advance over complete entries. A process that dies leaves at most a torn
tail; a full disk leaves the writer where it was, ready for a smaller record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tensortap.errors import DumpFormatError
from tensortap.pill import PILL_SIZE
from tensortap.records import Circumstances, Node, Record, RecordBatch, RunInfo, tensor_name
from tensortap.store.content import ContentStore, Grant
from tensortap.store.description import FAILED, FINISHED, RunDescription, write_description
from tensortap.store.device_files import DeviceFiles
from tensortap.store.health import HealthLog, Pill, PillBlock
from tensortap.store.layout import (
    DATA_SUFFIX,
    DESCRIPTION,
    INDEX_SUFFIX,
    MARKER,
    run_name,
    stored_path,
    write_marker,
)
from tensortap.store.session import remove_run
from tensortap.store.sync import sync_files, sync_folders

__all__ = ["RunWriter", "SessionStore"]


class SessionStore:
    """A session root that this process writes runs into; other ranks may write into it at the same time.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> with SessionStore(root) as store, store.new_run(RunInfo(index=0, global_step=3, timestamp=17)) as run:
    ...     _ = run.write(Record("fc", 0, "DebugNanCount", "/device:CPU:0", 18, "int64", (1,), bytes(8)))
    ...     run.finish({}, {})
    >>> sorted(path.name for path in root.iterdir())
    ['health', 'run_17_0', 'tensortap.json']
    """

    def __init__(self, root: Path | str, *, fsync: bool = False) -> None:
        self.root = Path(root).expanduser()
        self._fsync = fsync
        self.root.mkdir(parents=True, exist_ok=True)
        write_marker(self.root)
        self._content = ContentStore(self.root)
        self._health: dict[int, HealthLog] = {}

    def new_run(self, info: RunInfo) -> RunWriter:
        """Make the directory of a run and its writer.

        Two runs that start in the same microsecond get different directories: the later one moves on by a
        microsecond until its name is free.
        """
        while True:
            run_dir = self.root / run_name(info.timestamp, info.index)
            try:
                run_dir.mkdir()
            except FileExistsError:
                info = replace(info, timestamp=info.timestamp + 1)
                continue
            health = self._health.setdefault(info.task, HealthLog(self.root, info.task))
            return RunWriter(run_dir, info, content=self._content, health=health, fsync=self._fsync)

    def put(self, folder: str, content: bytes) -> str:
        """Store a GraphDef in `graphs` or a file in `sources`, unless it is there already; its digest."""
        return self._content.put(folder, content)

    def get(self, folder: str, digest: str) -> bytes:
        """What was stored under a digest.

        Raises:
            DumpFormatError: it is missing, or its bytes have changed.
        """
        return self._content.get(folder, digest)

    def close(self) -> None:
        """Close the health history; new runs open it again."""
        for log in list(self._health.values()):
            log.close()

    def __enter__(self) -> SessionStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunWriter:
    """Writes one run, from one thread.

    Args:
        run_dir: made if it is not there.
        info: the run.
        content: where graphs and sources go.
        health: the history that its pills are added to.
        fsync: at the end of the run, wait until all of it is on the disk itself, so that it outlives a power
            failure; the health history, which can be made again from the runs, is left to the kernel.

    Attributes:
        path: the run directory, under which a reader finds the run.
    """

    def __init__(
        self,
        run_dir: Path | str,
        info: RunInfo,
        *,
        content: ContentStore | None = None,
        health: HealthLog | None = None,
        fsync: bool = False,
    ) -> None:
        self.path = Path(run_dir)
        self._fsync = fsync
        self.info = info
        self.path.mkdir(parents=True, exist_ok=True)
        root = self.path.parent
        self._content = content or ContentStore(root)
        self._own_health = health is None
        self._health = health or HealthLog(root, info.task)
        self._devices: dict[str, DeviceFiles] = {}
        self._closed = False
        self._description = RunDescription(info)
        write_description(self.path, self._description)

    @property
    def nbytes(self) -> int:
        """Bytes written so far, values and index together."""
        return sum(files.nbytes for files in self._devices.values())

    def write(self, record: Record) -> int:
        """Append one record; readable by everybody once this returns.

        Returns:
            The number of bytes written.

        Raises:
            OSError: the disk is full or fails. The directory stays readable, and the writer usable for
                records that fit.
            ValueError: the record's size, shape and dtype disagree.
        """
        return self.write_many((record,))

    def write_many(self, records: Iterable[Record]) -> int:
        """Append records with one write to each index: faster for many small ones.

        All of them are readable once this returns. If it raises, those of devices already done are there, and
        of the others none.
        """
        batches: dict[str, list[Record]] = {}
        for record in records:
            batches.setdefault(record.device, []).append(record)
        return sum(self._files(device).append(batch) for device, batch in batches.items())

    def write_batch(self, batch: RecordBatch) -> int:
        """Append a batch, as `write_many` does with records."""
        return sum(self._files(part.device).append_batch(part) for part in batch.per_device())

    def _files(self, device: str) -> DeviceFiles:
        if self._closed:
            raise ValueError(f"The run {self.path.name} is already finished.")
        files = self._devices.get(device)
        if files is None:
            files = self._devices[device] = DeviceFiles(self.path, device)
        return files

    def store_graphs(self, nodes_by_device: Mapping[str, Sequence[Node]]) -> None:
        """Store the graphs before the run ends, so that a run that dies has them too."""
        self._describe(graphs=self._content.put_graphs(nodes_by_device))

    def refer(
        self, graphs: Mapping[str, str] | None = None, sources: Mapping[str, str] | None = None
    ) -> None:
        """Add graphs by device and source files by path that `SessionStore.put` has stored."""
        known = self._description
        self._describe(
            graphs={**known.graphs, **(graphs or {})}, sources={**known.sources, **(sources or {})}
        )

    def finish(
        self,
        nodes_by_device: Mapping[str, Sequence[Node]],
        counts: Mapping[str, int],
        error: str | None = None,
        sources: Iterable[str] = (),
        circumstances: Circumstances | None = None,
        grant: Grant = lambda nbytes: None,
    ) -> None:
        """Complete the run: graphs, source files, health history, and the final description last.

        What cannot be stored is said in the description; only a description that cannot be written raises.

        Args:
            nodes_by_device: the executed graph of every device.
            counts: what the sink counted, such as dropped records; shown by readers.
            error: what made the run fail, if it did.
            sources: paths of the user's source files.
            circumstances: what the engine knows of the run besides.
            grant: asked before a graph is written.
        """
        if self._closed:
            return
        self._close_files()
        notes: list[str] = []
        graphs = self._description.graphs
        try:
            graphs = self._content.put_graphs(nodes_by_device, grant) or graphs
        except OSError as problem:
            notes.append(f"The graphs could not be stored: {problem}.")
        digests = self._description.sources
        try:
            digests = {**digests, **self._content.put_sources(sources)}
        except OSError as problem:
            notes.append(f"The source files could not be stored: {problem}.")
        try:
            if not any(files.too_many_pills for files in self._devices.values()):
                self._health.add(self.path.name, self.info, self._pills(), self._keys())
        except (OSError, sqlite3.Error, DumpFormatError) as problem:
            # Readers take the pills of this run from its index instead.
            notes.append(f"The health history could not be extended: {problem}.")
        finally:
            if self._own_health:
                self._health.close()
        if self._fsync:
            try:
                self._sync_contents(graphs, digests)
            except OSError as problem:
                notes.append(
                    f"The run may not outlive a power failure, for the disk failed to sync: {problem}."
                )
        self._describe(
            status=FINISHED if error is None else FAILED,
            error=error,
            counts=dict(counts),
            graphs=graphs,
            sources=digests,
            notes=tuple(notes),
            circumstances=circumstances or Circumstances(),
        )
        if self._fsync:
            # Last, so that a description which says that the run is finished never precedes what it describes.
            sync_files([self.path / DESCRIPTION])
            sync_folders([self.path])

    def _sync_contents(self, graphs: Mapping[str, str], sources: Mapping[str, str]) -> None:
        root = self.path.parent
        stored = [stored_path(root, "graphs", digest) for digest in graphs.values()]
        stored += [stored_path(root, "sources", digest) for digest in sources.values()]
        records = [path for path in self.path.iterdir() if path.suffix in (DATA_SUFFIX, INDEX_SUFFIX)]
        sync_files([*records, *stored, root / MARKER])
        sync_folders({self.path, root, *(path.parent for path in stored)})

    def abandon(self) -> None:
        """Delete the run directory, finished or not. Pills of a finished run stay in the health history."""
        self.close()
        remove_run(self.path)

    def close(self) -> None:
        """Close the files; a run that was not finished is readable and flagged as such."""
        self._close_files()
        if self._own_health:
            self._health.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_files(self) -> None:
        self._closed = True
        for files in self._devices.values():
            files.close()

    def _describe(self, **changes: object) -> None:
        self._description = replace(self._description, **changes)  # type: ignore[arg-type]
        write_description(self.path, self._description)

    def _keys(self) -> Iterator[tuple[str, str, str]]:
        for device, files in self._devices.items():
            for node, slot, debug_op in files.keys:
                yield tensor_name(node, slot), debug_op, device

    def _pills(self) -> Iterator[Pill | PillBlock]:
        for device, files in self._devices.items():
            for written in files.pills:
                if isinstance(written, PillBlock):
                    yield written
                    continue
                node, slot, timestamp, value = written
                values = np.frombuffer(value, np.float64)
                if len(values) >= PILL_SIZE:
                    yield Pill(tensor_name(node, slot), device, timestamp, values)
