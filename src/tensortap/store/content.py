"""Graphs and source files, stored once per distinct content under the session root.

The name of a stored file is the SHA-256 of its bytes, so every run and every rank that has the same graph
refers to the same file, writers never disagree about a file, and readers notice when one is damaged.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensortap.records import Node
from tensortap.store.bounded import MAX_MESSAGE_BYTES, read_bounded
from tensortap.store.format import DumpFormatError
from tensortap.store.layout import content_path, write_atomically

__all__ = ["ContentStore"]

MAX_SOURCE_BYTES = 4 << 20
"""A larger file is generated data, not a program that somebody reads."""


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

    def put(self, folder: str, content: bytes) -> str:
        """Store `content` unless it is there already; its digest."""
        digest = hashlib.sha256(content).hexdigest()
        if (folder, digest) not in self._known:
            path = content_path(self._root, folder, digest)
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                write_atomically(path, content)
            self._known.add((folder, digest))
        return digest

    def get(self, folder: str, digest: str) -> bytes:
        """The content with this digest.

        Raises:
            DumpFormatError: the file is missing or its bytes have changed.
        """
        path = content_path(self._root, folder, digest)
        try:
            # Digested in pieces first: what has grown beyond all measure need not fit into memory to be refused.
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size > MAX_MESSAGE_BYTES:
                    raise DumpFormatError(f"{path}: larger than anything that is stored there.")
                intact = hashlib.file_digest(file, "sha256").hexdigest() == digest
            content = read_bounded(path) if intact else b""
        except OSError as error:
            raise DumpFormatError(f"{path}: cannot be read: {error.strerror}.") from error
        if not intact or hashlib.sha256(content).hexdigest() != digest:
            raise DumpFormatError(f"{path}: the content has changed since it was written.")
        return content

    def put_graphs(self, nodes_by_device: Mapping[str, Sequence[Node]]) -> dict[str, str]:
        """Store the graph of every device; digests by device name."""
        return {device: self._put_graph(device, nodes) for device, nodes in nodes_by_device.items()}

    def _put_graph(self, device: str, nodes: Sequence[Node]) -> str:
        from tensortap.wire.graph_def import GraphEncoder

        # Most runs of a session execute the same nodes; comparing them is far cheaper than encoding them.
        listed = list(nodes)
        with self._lock:
            last = self._last_graph.get(device)
        if last is not None and last[0] == listed:
            return last[1]
        with self._lock:
            digest = self.put("graphs", self._encoders.setdefault(device, GraphEncoder()).encoded(listed))
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
