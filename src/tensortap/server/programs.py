"""The user's program as clients describe it: call tracebacks and source files, sent outside of any stream (F3, F4).

They do not say whose runs they belong to. Source files are attached to the runs that follow, of whichever job.
A traceback gives a graph its source lines if it names nearly all of the graph's nodes that a program can have made.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from typing import Any

from tensortap.runtime_names import is_made_by_runtime, op_behind
from tensortap.server.limits import Limits
from tensortap.store.writer import SessionStore
from tensortap.wire.debug_service import WireError
from tensortap.wire.messages import CallTraceback, DebuggedSourceFiles, DecodeError, GraphDef

__all__ = ["Programs"]

_COVERAGE = 0.9
"""Part of a graph's nodes that a traceback must name, without those that only the runtime makes. If it names
less, it may be of another program, whose ops have the same names."""
_SOURCE_LINES = "_source"
"""The attribute in which our own graphs carry the stack of a node."""


class Programs:
    """What clients told about their programs, newest last; safe to use from several threads."""

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.source_bytes
        self._lock = threading.Lock()
        self._tracebacks: deque[tuple[int, dict[str, list[bytes]]]] = deque()
        self._traceback_bytes = 0
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._file_bytes = 0
        self._version = 0
        self._stored: weakref.WeakKeyDictionary[SessionStore, tuple[int, dict[str, str]]] = (
            weakref.WeakKeyDictionary()
        )

    def add_traceback(self, message: bytes) -> None:
        """Keep where the ops of a graph were made.

        Raises:
            WireError: it is no CallTraceback.
        """
        try:
            traceback = CallTraceback.FromString(message)
        except DecodeError as error:
            raise WireError(f"The message is no CallTraceback: {error}.") from error
        log = traceback.graph_traceback
        lines = {entry.name: _frames(entry.code_def, log.id_to_string) for entry in log.log_entries}
        if not lines:
            return
        with self._lock:
            self._tracebacks.append((len(message), lines))
            self._traceback_bytes += len(message)
            while self._traceback_bytes > self._limit and len(self._tracebacks) > 1:
                self._traceback_bytes -= self._tracebacks.popleft()[0]

    def add_sources(self, message: bytes) -> None:
        """Keep source files. Their paths are those of the client; here they are only names.

        Raises:
            WireError: it is no DebuggedSourceFiles, or a name is none.
        """
        try:
            files = DebuggedSourceFiles.FromString(message).source_files
        except DecodeError as error:
            raise WireError(f"The message is no DebuggedSourceFiles: {error}.") from error
        for file in files:
            path = file.file_path
            if len(path) > 4096 or "\0" in path or not path:
                raise WireError(f"{path[:80]!r} is no name of a source file.")
            content = "\n".join(file.lines).encode("utf-8", "surrogateescape")
            with self._lock:
                self._file_bytes += len(content) - len(self._files.pop(path, b""))
                self._files[path] = content
                self._version += 1
                while self._file_bytes > self._limit:
                    self._file_bytes -= len(self._files.popitem(last=False)[1])

    def sources_for(self, store: SessionStore) -> dict[str, str]:
        """Digests of all files by path, stored with the session."""
        with self._lock:
            version, files = self._version, dict(self._files)
            known = self._stored.get(store)
        if known is not None and known[0] == version:
            return known[1]
        digests = {path: store.put("sources", content) for path, content in files.items()}
        with self._lock:
            self._stored[store] = version, digests
        return digests

    def with_source_lines(self, graph: bytes) -> bytes:
        """A GraphDef whose nodes carry their lines, if a traceback fits it; else as it is."""
        with self._lock:
            known = list(self._tracebacks)
        if not known:
            return graph
        message = GraphDef.FromString(graph)
        for _, lines in reversed(known):
            ops = {node.name: op_behind(node.name, lines) for node in message.node}
            named = [name for name in ops if not is_made_by_runtime(name)]
            if named and sum(ops[name] is not None for name in named) >= _COVERAGE * len(named):
                for node in message.node:
                    op = ops[node.name]
                    if op is not None and _SOURCE_LINES not in node.attr:
                        node.attr[_SOURCE_LINES].list.s.extend(lines[op])
                return bytes(message.SerializeToString(deterministic=True))
        return graph


def _frames(code: Any, names: Any) -> list[bytes]:
    """The stack of an op, outermost first, each line spelled as our own graphs spell it."""
    return [
        f"{names.get(trace.file_id, '?')}:{trace.lineno} in {names.get(trace.function_id, '?')}".encode()
        for trace in code.traces
    ]
