"""The debug service: its names and limits, tokens, tracebacks and source files (F1–F4)."""

from __future__ import annotations

import json

from tensortap.records import Frame, Node
from tensortap.wire.debug_service import (
    MAX_CHUNK_BYTES,
    READ_WRITE,
    SEND_EVENTS,
    EventReply,
    token_metadata,
    token_of,
)
from tensortap.wire.tracebacks import call_traceback, run_key, source_file


def test_names_and_limits():
    assert SEND_EVENTS == "/tensorflow.EventListener/SendEvents"
    assert MAX_CHUNK_BYTES == 4000 * 1024
    assert EventReply.DebugOpStateChange.State.Value("READ_WRITE") == READ_WRITE


def test_a_token_travels_in_the_metadata_of_a_call():
    assert token_of([("user-agent", "x"), token_metadata("secret")]) == "secret"
    assert token_of([("authorization", "Basic secret"), ("other", "Bearer secret")]) is None


def test_a_run_key_has_names_and_no_values():
    """C35, X8."""
    assert json.loads(run_key({"x": object()}, ["loss", "y:0"])) == [["x"], ["loss", "y:0"]]


def test_tracebacks_name_file_line_and_function(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nloss = model(x)  # the line\n")
    node = Node("loss", "aten::sum", stack=(Frame(str(script), 3, "<module>"),))
    message = call_traceback("[[], []]", [Frame(str(script), 3, "<module>")], [node, Node("x", "Const")], 7)
    strings = message.graph_traceback.id_to_string
    entry, bare = message.graph_traceback.log_entries
    (trace,) = entry.code_def.traces
    assert (strings[trace.file_id], trace.lineno, strings[trace.function_id]) == (str(script), 3, "<module>")
    assert strings[trace.line_id] == "loss = model(x)  # the line"
    assert not bare.code_def.traces
    assert message.graph_version == 7
    assert message.origin_id_to_string[message.origin_stack.traces[0].file_id] == str(script)
    (file,) = source_file(str(script)).source_files
    assert file.lines[2] == "loss = model(x)  # the line"
    assert file.bytes == script.stat().st_size
    assert source_file(str(tmp_path / "missing.py")) is None
    (tmp_path / "huge.py").write_bytes(b"#" * (MAX_CHUNK_BYTES + 1))
    assert source_file(str(tmp_path / "huge.py")) is None
