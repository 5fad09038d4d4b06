"""Where a program made its nodes, and its source files, as messages (F3, F4)."""

from __future__ import annotations

import json
import linecache
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from tensortap.records import Frame, Node
from tensortap.wire.debug_service import GRAPH_EXECUTION, MAX_CHUNK_BYTES, CallTraceback, DebuggedSourceFiles

__all__ = ["call_traceback", "run_key", "source_file"]


def run_key(feed_names: Iterable[str], fetch_names: Iterable[str]) -> str:
    """What a run was asked for, as one text: names only, never values.

    >>> run_key(["x"], ["loss"])
    '[["x"], ["loss"]]'
    """
    return json.dumps([list(feed_names), list(fetch_names)])


def call_traceback(key: str, origin: Sequence[Frame], nodes: Iterable[Node], graph_version: int) -> Any:
    """The message that says from where a run was started, and which lines made its nodes.

    Args:
        key: of the run, see `run_key`.
        origin: the stack of the call that started it, outermost first.
        nodes: of its graph.
        graph_version: of the graph.

    >>> node = Node("fc/addmm", "aten::addmm", stack=(Frame("train.py", 12, "step"),))
    >>> message = call_traceback("[[], []]", [Frame("train.py", 30, "main")], [node], 1)
    >>> [trace.lineno for trace in message.graph_traceback.log_entries[0].code_def.traces]
    [12]
    """
    message = CallTraceback(call_type=GRAPH_EXECUTION, call_key=key, graph_version=graph_version)
    _write_stack(message.origin_stack, origin, strings := {"": 0})
    for text, number in strings.items():
        message.origin_id_to_string[number] = text
    strings = {"": 0}
    log = message.graph_traceback
    for node in nodes:
        entry = log.log_entries.add(name=node.name, types=[node.op_type])
        _write_stack(entry.code_def, node.stack, strings)
    for text, number in strings.items():
        log.id_to_string[number] = text
    return message


def _write_stack(code: Any, stack: Iterable[Frame], strings: dict[str, int]) -> None:
    for frame in stack:
        line = linecache.getline(frame.file, frame.line).strip()
        code.traces.add(
            file_id=strings.setdefault(frame.file, len(strings)),
            lineno=frame.line,
            function_id=strings.setdefault(frame.function, len(strings)),
            line_id=strings.setdefault(line, len(strings)),
        )


def source_file(path: str) -> Any | None:
    """The message with one source file; None if it cannot be read, or is no text of reasonable size."""
    try:
        facts = os.stat(path)
        if facts.st_size > MAX_CHUNK_BYTES:
            return None
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    message = DebuggedSourceFiles()
    message.source_files.add(
        host=socket.gethostname(),
        file_path=path,
        last_modified=facts.st_mtime_ns,
        bytes=facts.st_size,
        lines=lines,
    )
    return message
