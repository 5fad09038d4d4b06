"""The messages of the debug service are TensorFlow's own, and live beside them in one process (F1–F4)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

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

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="compares with TensorFlow, which is not installed"
)

# The messages alone, without the seconds that the rest of TensorFlow takes to import.
OURS_FIRST = """
import importlib.util, sys, types
import tensortap.wire.debug_service
found = importlib.util.find_spec("tensorflow")
sys.modules["tensorflow"] = types.ModuleType("tensorflow")
sys.modules["tensorflow"].__path__ = found.submodule_search_locations
"""
COMPARE = """
import json
from tensorflow.core.debug import debug_service_pb2 as theirs
from tensorflow.core.protobuf import debug_pb2
from tensorflow.core.util import event_pb2

def described(descriptor):
    found = {}
    for field in descriptor.fields:
        inner = field.message_type or field.enum_type
        kind = inner.name if inner is not None else None
        found[field.name] = [field.number, field.type, bool(getattr(field, "is_repeated", False)), kind]
    for enum in descriptor.enum_types:
        found[enum.name] = {value.name: value.number for value in enum.values}
    for nested in descriptor.nested_types:
        found[nested.name] = described(nested)
    return found

def both():
    from tensortap.wire import debug_service as ours
    pairs = [(ours.EventReply, theirs.EventReply), (ours.CallTraceback, theirs.CallTraceback),
             (ours.DebuggedSourceFiles, debug_pb2.DebuggedSourceFiles),
             (ours.DebuggedSourceFile, debug_pb2.DebuggedSourceFile)]
    fields = all(described(a.DESCRIPTOR) == described(b.DESCRIPTOR) for a, b in pairs)
    reply = ours.EventReply()
    reply.debug_op_state_changes.add(state=ours.READ_WRITE, node_name="fc", output_slot=1, debug_op="DebugIdentity")
    reply.tensor.tensor_content = b"abcd"
    content = reply.SerializeToString()
    same_bytes = theirs.EventReply.FromString(content).SerializeToString() == content
    service = theirs.DESCRIPTOR.services_by_name["EventListener"]
    names = [f"/{service.full_name}/{method.name}" for method in service.methods]
    return {"fields": fields, "bytes": same_bytes,
            "methods": names == [ours.SEND_EVENTS, ours.SEND_TRACEBACKS, ours.SEND_SOURCE_FILES]}
"""


@needs_tensorflow
@pytest.mark.parametrize("first", ["", OURS_FIRST], ids=["theirs first", "ours first"])
def test_fields_are_tensorflows_and_both_live_in_one_process(first):
    program = first + COMPARE + "\nprint(json.dumps(both()))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"fields": True, "bytes": True, "methods": True}


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
