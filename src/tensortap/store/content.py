"""Graphs and source files, stored once per distinct content under the session root.

The name of a stored file is the SHA-256 of its content, so every run and every rank that has the same graph
refers to the same file, writers never disagree about a file, and readers notice when one is damaged. Large graphs are
compressed: thousands of nodes differ by little more than their numbers, and a program that executes another graph in
every run would otherwise fill the disk with them.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tensortap.errors import DumpFormatError
from tensortap.records import Node
from tensortap.store.layout import compressed_path, content_path, stored_path, write_atomically
from tensortap.wire.bounded import MAX_MESSAGE_BYTES, read_bounded

__all__ = ["ContentStore"]

MAX_SOURCE_BYTES = 4 << 20
"""A larger file is generated data, not a program that somebody reads."""


COMPRESSED_FROM = 256 << 10
"""Smaller graphs stay as they are, for other programs to read."""

_GZIP = 31  # for zlib: with the header of a gzip file
_PIECE = 1 << 20

Grant = Callable[[int], str | None]
"""Asked before so many bytes are written: why they may not be, None if they may."""


class ContentStore:
    """Content by its digest, in one folder per kind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ContentStore(Path(folder))
    ...     digest = store.put("sources", b"print()")
    ...     store.get("sources", digest)
    b'print()'
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._known: set[tuple[str, str]] = set()
        self._last_graph: dict[str, tuple[list[Node], str]] = {}
        self._encoders: dict[str, Any] = {}
        self._source_digests: dict[tuple[str, int, int], str] = {}

    def put(self, folder: str, content: bytes, grant: Grant = lambda nbytes: None) -> str:
        """Store `content` unless it is there already; its digest.

        Raises:
            OSError: it cannot be written, or may not.
        """
        digest = hashlib.sha256(content).hexdigest()
        if (folder, digest) not in self._known:
            if not stored_path(self._root, folder, digest).exists():
                path = content_path(self._root, folder, digest)
                if folder == "graphs" and len(content) >= COMPRESSED_FROM:
                    path, content = compressed_path(path), gzip.compress(content, 1, mtime=0)
                refusal = grant(len(content))
                if refusal is not None:
                    raise OSError(f"{len(content)} bytes are over the {refusal}")
                path.parent.mkdir(exist_ok=True)
                write_atomically(path, content)
            self._known.add((folder, digest))
        return digest

    def get(self, folder: str, digest: str) -> bytes:
        """The content with this digest.

        Raises:
            DumpFormatError: the file is missing or its bytes have changed.
        """
        path = stored_path(self._root, folder, digest)
        is_compressed = path != content_path(self._root, folder, digest)
        try:
            # Digested in pieces first: what has grown beyond all measure need not fit into memory to be refused.
            if path.stat().st_size > MAX_MESSAGE_BYTES:
                raise DumpFormatError(f"{path}: larger than anything that is stored there.")
            with path.open("rb") as file:
                found = hashlib.sha256()
                for piece in _pieces(file, is_compressed):
                    found.update(piece)
            intact = found.hexdigest() == digest
            content = b""
            if intact:
                stored = read_bounded(path)
                content = zlib.decompress(stored, _GZIP) if is_compressed else stored
        except OSError as error:
            raise DumpFormatError(f"{path}: cannot be read: {error.strerror}.") from error
        except zlib.error:
            intact = False
        if not intact or hashlib.sha256(content).hexdigest() != digest:
            raise DumpFormatError(f"{path}: the content has changed since it was written.")
        return content

    def put_graphs(
        self, nodes_by_device: Mapping[str, Sequence[Node]], grant: Grant = lambda nbytes: None
    ) -> dict[str, str]:
        """Store the graph of every device; digests by device name.

        Args:
            nodes_by_device: the graphs.
            grant: asked before anything is written.

        Raises:
            OSError: one cannot be written, or may not.
        """
        return {device: self._put_graph(device, nodes, grant) for device, nodes in nodes_by_device.items()}

    def _put_graph(self, device: str, nodes: Sequence[Node], grant: Grant) -> str:
        from tensortap.wire.graph_def import GraphEncoder

        # Most runs of a session execute the same nodes; comparing them is far cheaper than encoding them.
        listed = list(nodes)
        with self._lock:
            last = self._last_graph.get(device)
        if last is not None and last[0] == listed:
            return last[1]
        with self._lock:
            encoder = self._encoders.setdefault(device, GraphEncoder())
            digest = self.put("graphs", encoder.encoded(listed), grant)
            self._last_graph[device] = (listed, digest)
        return digest

    def put_sources(self, paths: Iterable[str]) -> dict[str, str]:
        """Store the files that can be read; digests by path."""
        digests = {}
        for path in paths:
            try:
                facts = Path(path).stat()
                if facts.st_size > MAX_SOURCE_BYTES:
                    continue
                key = (path, facts.st_mtime_ns, facts.st_size)
                if key not in self._source_digests:
                    self._source_digests[key] = self.put("sources", Path(path).read_bytes())
                digests[path] = self._source_digests[key]
            except FileNotFoundError:
                continue  # code made at run time has a file name but no file
            except ValueError:
                continue  # a name with a NUL cannot be a file
            except PermissionError:
                continue
        return digests


def _pieces(file: BinaryIO, is_compressed: bool) -> Iterator[bytes]:
    """What a file holds, piece by piece; no more than can be meant."""
    inflate = zlib.decompressobj(_GZIP)
    total = 0
    while piece := file.read(_PIECE):
        while piece:
            found = inflate.decompress(piece, _PIECE) if is_compressed else piece
            piece = inflate.unconsumed_tail if is_compressed else b""
            total += len(found)
            if total > MAX_MESSAGE_BYTES:
                raise DumpFormatError(f"{file.name}: larger than anything that is stored there.")
            yield found
